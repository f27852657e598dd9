"""One HTML page about some runs that needs nothing else: no network, no folder of pictures beside it."""

from __future__ import annotations

import base64
import json
import shlex
from dataclasses import fields, is_dataclass
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from etd.core.errors import UserError
from etd.envs import Task
from etd.lab import plot, presets
from etd.lab.fields import bonus_name
from etd.lab.store import Run
from etd.train.experiment import Experiment

SOLVED = 0.9
"""The mean return whose first step is reported, as the paper's curves are read."""
FILM = "episode.gif"
"""Where the command line puts a run's film, inside its directory."""
LISTED = 6
"""Up to so many seeds are listed one by one; of more, the median and the range are given."""


class Numbers(NamedTuple):
    """What a run came to. Lists are per seed, with NaN or None where there is nothing to say."""

    steps: int
    final_return: list[float]
    final_success: list[float]
    solved_at: list[int | None]
    """steps to a mean return of SOLVED"""
    first_success: list[int | None]
    wall: float
    """seconds, compilation and all resumptions included"""
    throughput: float
    """steps per second of all seeds together, compilation left out"""
    resumed: int
    """how often the run was continued"""
    frozen: list[int]
    """seeds that met a loss that is not finite"""


def write(runs: list[Path], out: Path) -> Path:
    """Write the page on ``runs``; a directory ``out`` gets it as report.html."""
    if not runs:
        raise UserError("There is no run to report on. Name at least one run directory.")
    opened = [Run.open(path) for path in runs]
    out = out / "report.html" if out.is_dir() else out
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(_page(opened), encoding="utf-8")
    return out


# Numbers ---------------------------------------------------------------------------------------------------------


def numbers(run: Run) -> Numbers:
    """Read them off the run's metrics."""
    table = run.metrics()
    seeds = run.experiment.seeds
    if not table:
        return Numbers(0, [np.nan] * seeds, [np.nan] * seeds, [None] * seeds, [None] * seeds, 0.0, np.nan, 0, [])
    steps, returns = plot.by_seed(run, "return")[1:]
    first, alive = plot.by_seed(run, "first_success").values, plot.by_seed(run, "alive")
    return Numbers(
        int(steps[-1]),
        [_last(row) for row in returns],
        [_last(row) for row in plot.by_seed(run, "success").values],
        [int(steps[(row >= SOLVED).argmax()]) if (row >= SOLVED).any() else None for row in returns],
        [int(_last(row)) if _last(row) >= 0 else None for row in first],
        *_times(run),
        [seed for seed, row in zip(alive.seeds, alive.values, strict=True) if _last(row) == 0],
    )


def _last(row: np.ndarray) -> float:
    """The newest value; a torn last row has none."""
    finite = row[np.isfinite(row)]
    return float(finite[-1]) if finite.size else float("nan")


def _times(run: Run) -> tuple[float, float, int]:
    """(seconds in all, steps per second, resumptions). The clock in the metrics starts anew with every resumption."""
    steps, wall = plot.by_seed(run, "wall")[1:]
    clock = np.nanmax(wall, axis=0)
    taken = np.diff(clock, prepend=0.0)
    resumed = taken < 0
    taken = np.where(resumed, clock, taken)
    # The first iteration after a start holds the compilation.
    steady = ~resumed & (np.arange(len(clock)) > 0)
    done = np.diff(steps, prepend=0.0)[steady].sum() * run.experiment.seeds
    rate = float(done / taken[steady].sum()) if steady.any() else float("nan")
    return float(taken.sum()), rate, int(resumed.sum())


def commands(run: Run, resumed: int) -> list[str]:
    """Command lines that make this run: the preset's environment and bonus, and every field that differs."""
    experiment = run.experiment
    bonus = bonus_name(experiment.bonus)
    try:
        preset = presets.choose(experiment.env.id, bonus)
    except UserError:  # the paper did not try this pair
        preset = Experiment(env=Task(experiment.env.id), bonus=type(experiment.bonus)())
    words = ["etd", "train", "--env", experiment.env.id, "--bonus", bonus]
    for path, value in _differences(preset, experiment):
        words += [f"--{path}", str(value)] if path in ("steps", "seeds", "seed") else ["--set", f"{path}={value}"]
    words += ["--out", str(run.path)]
    return [shlex.join(words)] + [shlex.join(["etd", "resume", str(run.path)])] * resumed


def _differences(base: Any, value: Any, where: str = "") -> list[tuple[str, Any]]:
    """(path, value) of every single field in which two experiments differ."""
    found: list[tuple[str, Any]] = []
    for f in fields(value):
        old, new, path = getattr(base, f.name), getattr(value, f.name), f"{where}{f.name}"
        if is_dataclass(new):
            found += _differences(old, new, f"{path}.")
        elif old != new:
            found.append((path, new))
    return found


# Text ------------------------------------------------------------------------------------------------------------


def spread(values: list[float], how: str) -> str:
    """Mean and standard deviation over seeds; seeds without a value are left out."""
    finite = [value for value in values if np.isfinite(value)]
    if not finite:
        return "no episode finished yet"
    mean = f"{np.mean(finite):{how}}"
    return mean if len(finite) == 1 else f"{mean} ± {np.std(finite, ddof=1):{how}}"


def each(values: list[int | None]) -> str:
    """Steps per seed."""
    reached = [value for value in values if value is not None]
    if not reached:
        return "not yet"
    if len(values) <= LISTED:
        return ", ".join("not yet" if value is None else f"{value:,}" for value in values)
    span = f"median {int(np.median(reached)):,} ({min(reached):,} to {max(reached):,})"
    return span if len(reached) == len(values) else f"{span}; {len(reached)} of {len(values)} seeds"


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def _headline(run: Run, result: Numbers) -> dict[str, str]:
    experiment, device = run.experiment, run.record.get("device", {})
    frozen = ", ".join(map(str, result.frozen))
    planned = experiment.iterations * experiment.steps_per_iteration
    return {
        "environment": experiment.env.id,
        "bonus": bonus_name(experiment.bonus),
        "seeds": str(experiment.seeds) + (f" (not finite, frozen: {frozen})" if frozen else ""),
        "steps per seed": f"{result.steps:,}" + (f" of {planned:,}" if result.steps < planned else ""),
        "final return": spread(result.final_return, ".3f"),
        "final success": spread(result.final_success, ".1%"),
        f"steps to return {SOLVED}": each(result.solved_at),
        "first success at step": each(result.first_success),
        "wall time": _duration(result.wall),
        "throughput": f"{result.throughput:,.0f} steps/s" if np.isfinite(result.throughput) else "unknown",
        "device": str(device.get("kind", "unknown")),
    }


# Page ------------------------------------------------------------------------------------------------------------


def _page(runs: list[Run]) -> str:
    results = [numbers(run) for run in runs]
    names = [run.path.name or str(run.path) for run in runs]
    environments = list(dict.fromkeys(run.experiment.env.id for run in runs))
    title = f"etd: {names[0]}" if len(runs) == 1 else f"etd: {len(runs)} runs on {', '.join(environments)}"
    sections = "".join(_section(*row) for row in zip(runs, names, results, strict=True))
    caption = "Learning curves: mean return of the last 100 episodes against environment steps."
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>{escape(title)}</h1>
{_table(names, [_headline(run, result) for run, result in zip(runs, results, strict=True)])}
<p class="note">Means and standard deviations are over seeds, of each seed's last 100 episodes.</p>
<h2>Learning curves</h2>
{_drawing(plot.draw_curves(runs), caption)}
{sections}
</main>
</body>
</html>
"""


def _table(names: list[str], columns: list[dict[str, str]]) -> str:
    """One column per run, so that a single run fits a phone."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    rows = "".join(
        f'<tr><th scope="row">{escape(label)}</th>{"".join(f"<td>{escape(c[label])}</td>" for c in columns)}</tr>\n'
        for label in columns[0]
    )
    return (
        '<div class="wide" role="region" aria-label="Results" tabindex="0"><table>\n'
        f'<thead><tr><th scope="col">run</th>{head}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>'
    )


def _section(run: Run, name: str, result: Numbers) -> str:
    shown = f"{name} ({run.experiment.env.id}, {bonus_name(run.experiment.bonus)})"
    film, caption = run.path / FILM, f"An episode of {shown}, its bonus beside it."
    moving = _picture("gif", film.read_bytes(), caption) if film.is_file() else ""
    versions = "".join(
        f'<tr><th scope="row">{escape(str(key))}</th><td>{escape(str(value))}</td></tr>\n'
        for key, value in run.record.get("versions", {}).items()
    )
    experiment = json.dumps(run.record["experiment"], indent=2)
    return f"""<section>
<h2>{escape(name)}</h2>
{moving}
{_drawing(plot.draw_panel(run), f"Diagnostics of {shown}.")}
<h3>Made by</h3>
<pre><code>{escape(chr(10).join(commands(run, result.resumed)))}</code></pre>
<details><summary>Experiment</summary><pre><code>{escape(experiment)}</code></pre></details>
<details><summary>Versions</summary><table><tbody>
{versions}</tbody></table></details>
</section>
"""


def _drawing(figure: Figure, caption: str) -> str:
    stream = BytesIO()
    figure.savefig(stream, format="png")
    return _picture("png", stream.getvalue(), caption, wide=len(figure.axes) > 1)


def _picture(kind: str, content: bytes, caption: str, wide: bool = False) -> str:
    """A wide one is scrolled on a phone, not shrunk until nobody can read it."""
    data, text = base64.b64encode(content).decode(), escape(caption)
    image = f'<img alt="{text}" src="data:image/{kind};base64,{data}">'
    image = f'<div class="wide" role="region" aria-label="{text}" tabindex="0">{image}</div>' if wide else image
    return f"<figure>{image}<figcaption>{text}</figcaption></figure>"


STYLE = """
:root { color-scheme: light dark; --ink: #1d2026; --dim: #5c6370; --ground: #ffffff; --card: #f5f6f8; --line: #dfe2e7; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8eaee; --dim: #a0a7b4; --ground: #14161a; --card: #1d2026; --line: #343842; }
}
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: var(--ground); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0.5rem 0 1.25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 0.75rem; overflow-wrap: anywhere; }
h3 { font-size: 1rem; margin: 1.5rem 0 0.5rem; }
section { border-top: 1px solid var(--line); margin-top: 2.5rem; }
section h2 { margin-top: 1.5rem; }
.wide { overflow-x: auto; }
.wide img { min-width: 42rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: 0.4rem 1.5rem 0.4rem 0; border-bottom: 1px solid var(--line); }
td { min-width: 9rem; }
tbody th { font-weight: 400; color: var(--dim); white-space: nowrap; }
.wide tbody th { position: sticky; left: 0; background: var(--ground); }
.note, figcaption { color: var(--dim); font-size: 0.875rem; }
figure { margin: 1rem 0; }
figcaption { margin-top: 0.5rem; }
img { display: block; max-width: 100%; height: auto; background: #ffffff; border-radius: 6px; }
pre { background: var(--card); border-radius: 6px; padding: 0.75rem 1rem; margin: 0.5rem 0; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
code { font: 0.8125rem/1.5 ui-monospace, monospace; }
details { margin: 0.5rem 0; }
summary { cursor: pointer; }
"""
