"""A run as a notebook shows it: its state, its numbers and its learning curve."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from etd.core.errors import UserError
from etd.lab.runs.status import Status, status
from etd.training.config import bonus_name

if TYPE_CHECKING:
    from etd.lab.runs.store import Run

SHOWN = {"return": ".2f", "score": ".2f", "success": ".0%", "bonus_mean": ".3g", "episodes": ",.0f", "states": ",.0f"}
"""Metrics whose last mean over seeds is shown, and how."""
WIDTH, HEIGHT = 420, 150
POINTS = 300
"""Of a curve; no screen shows more of them at this size."""


def words(run: Run) -> str:
    """One line."""
    about = f"{run.experiment.env.id}, {bonus_name(run.experiment.bonus)}"
    if run.exported:
        return f"<Run {run.path}: the agent exported from {about}>"
    try:
        table = run.metrics()
    except UserError:
        return f"<Run {run.path}: {about}, metrics cannot be read>"
    last = _last(table)
    ends = [f"{name} {last[name]}" for name in ("return",) if name in last]
    return f"<Run {run.path}: {', '.join([about, *_progress(run, status(run, table)), *ends])}>"


def html(run: Run) -> str:
    """A table of its numbers, and the return as a curve."""
    head = f"<b>{escape(run.path.name)}</b> {escape(str(run.path))}"
    rows = {"environment": run.experiment.env.id, "bonus": bonus_name(run.experiment.bonus)}
    if run.exported:
        return f"{head}{_table({**rows, 'state': 'an exported agent'})}"
    try:
        table = run.metrics()
    except UserError as error:
        return f"{head}{_table({**rows, 'metrics': str(error)})}"
    state, *far = _progress(run, status(run, table))
    shown = {name.replace("_", " "): value for name, value in _last(table).items()}
    return f"{head}{_table({**rows, 'state': state, 'done': ', '.join(far), **shown})}{_curve(run, table)}"


def _progress(run: Run, now: Status) -> list[str]:
    each, seeds = run.experiment.steps_per_iteration, run.experiment.seeds
    done, total = now.iteration * each, run.experiment.iterations * each
    return [now.state, f"{done:,} of {total:,} steps", f"{seeds} seed{'s' * (seeds > 1)}"]


def _last(table: Mapping[str, np.ndarray]) -> dict[str, str]:
    """The mean over seeds of the last iteration's metrics, those that are known."""
    if not table:
        return {}
    rows = table["iteration"] == table["iteration"].max()
    known = {name: table[name][rows] for name in SHOWN if name in table}
    finite = {name: column[np.isfinite(column)] for name, column in known.items()}
    return {name: f"{column.mean():{SHOWN[name]}}" for name, column in finite.items() if column.size}


def _table(rows: Mapping[str, str]) -> str:
    cells = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(value)}</td></tr>'
        for name, value in rows.items()
    )
    return f"<table>{cells}</table>"


def _curve(run: Run, table: Mapping[str, np.ndarray]) -> str:
    """The return of every seed against steps; nothing while there are not two points."""
    if "return" not in table or "step" not in table:
        return ""
    known = np.isfinite(table["return"])
    if "episodes" in table:  # the first to end are the successful ones
        known &= table["episodes"] >= run.experiment.num_envs
    steps, values = table["step"][known], table["return"][known]
    if len(set(steps.tolist())) < 2:
        return ""
    low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
    high = high if high > low else low + 1.0
    left, right, top, bottom = 44, WIDTH - 8, 10, HEIGHT - 22
    x = left + steps / steps.max() * (right - left)
    y = bottom - (values - low) / (high - low) * (bottom - top)
    lines = []
    for seed in run.seeds:
        mine = np.flatnonzero(table["seed"][known] == seed)
        mine = mine[np.unique(np.linspace(0, len(mine) - 1, min(POINTS, len(mine))).round().astype(int))]
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x[mine], y[mine], strict=True))
        lines.append(f'<polyline points="{points}" fill="none" stroke="#d55e00" stroke-width="1.5" opacity="0.8"/>')
    marks = f'<text x="{left - 6}" y="{top + 4}" text-anchor="end">{high:.3g}</text>'
    marks += f'<text x="{left - 6}" y="{bottom + 4}" text-anchor="end">{low:.3g}</text>'
    marks += f'<text x="{left}" y="{HEIGHT - 6}">return of each seed</text>'
    marks += f'<text x="{right}" y="{HEIGHT - 6}" text-anchor="end">{steps.max():,.0f} steps</text>'
    axis = f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="currentColor" opacity="0.35"/>'
    return (
        f'<svg role="img" aria-label="Learning curve" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" style="font:11px sans-serif;fill:currentColor">{axis}{marks}{"".join(lines)}'
        "</svg>"
    )
