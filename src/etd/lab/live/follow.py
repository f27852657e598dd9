"""What the page shows of a run, read anew whenever its files change. Nothing is written, and no lock is taken."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from etd.core import files
from etd.core.errors import UserError
from etd.lab.report import plot
from etd.lab.report.curves import by_seed, centre
from etd.lab.runs.record import EXPORT
from etd.lab.runs.status import Status, status
from etd.lab.runs.store import FILE, Run
from etd.training.config import bonus_name

EVERY = 2.0
"""Seconds between two looks, or ten times what one takes if that is longer."""
POINTS = 250
"""Curves are thinned to this many points."""
LINES = 20
"""Seeds that get a line and a row of their own; the mean is over all."""
CURVES = {
    "return": "return, last 100 episodes",
    "score": "Crafter's score, %",
    "success": "success rate, last 100 episodes",
    "bonus_mean": "bonus per step",
}
"""Columns that are drawn, if the run has them, and their titles; of a score and the success, only the first."""


class _Read(NamedTuple):
    """What was read when the files had these marks."""

    marks: list[Any]
    run: Run
    table: dict[str, np.ndarray]
    shown: dict[str, Any]


class Follower:
    """Follows the run at ``path``, which need not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read: _Read | None = None
        self._local = False
        """whether a process of this machine was seen to train it"""
        self._took = 0.0
        self._lock = Lock()

    def data(self) -> dict[str, Any]:
        """The state of the run, as the page's script takes it."""
        with self._lock:
            try:
                found = self._data()
            except UserError as error:  # a damaged file, say; it may be put right
                found = {"state": "unreadable", "words": str(error)}
        about = {"path": str(self.path), "now": time.time(), "again": min(60.0, max(EVERY, 10 * self._took))}
        return _plain({**found, **about})

    def _data(self) -> dict[str, Any]:
        with files.told(self.path, "read"):
            if not os.path.lexists(self.path / FILE):
                refuse_other(self.path)
                self._read = None
                return {"state": "not begun", "words": f"There is no run in {self.path} yet."}
        marks = [_mark(self.path / name) for name in (FILE, "metrics.csv")]
        if self._read is None or self._read.marks != marks:
            self._read = self._look(marks)
        run, table = self._read.run, self._read.table
        now = status(run, table, self._local)
        self._local |= now.seen
        return {"state": now.state, "touched": now.touched, **_progress(run, table, now), **self._read.shown}

    def _look(self, marks: list[Any]) -> _Read:
        began = time.monotonic()
        run = Run.open(self.path)
        table = run.metrics()
        flaws = "" if run.kept or not table else run.flaws(int(table["iteration"].max()) - 1)
        second = "score" if "score" in table else "success"
        names = [name for name in ("return", second, "bonus_mean") if name in table and "step" in table]
        if "bonus_mean" in names and not np.any(table["bonus_mean"]):
            names.remove("bonus_mean")
        shown = {
            "env": plot.task(run),
            "bonus": bonus_name(run.experiment.bonus),
            "device": run.record.get("device", {}).get("kind", ""),
            "flaws": flaws,
            "curves": [_curve(run, table, name) for name in names],
            "columns": [name for name in ("return", second, "bonus_mean", "episodes", "states") if name in table],
            "seeds": [_row(table, seed) for seed in run.seeds[:LINES]] if table else [],
            "others": max(0, len(run.seeds) - LINES),
        }
        self._took = time.monotonic() - began
        return _Read(marks, run, table, shown)


def refuse_other(path: Path) -> None:
    """A UserError if what is at ``path`` is neither a run nor a place where one may begin."""
    if os.path.lexists(path / EXPORT):
        raise UserError(f"{path} is an exported agent, which is not trained. Name a run.")
    if os.path.lexists(path) and not path.is_dir():
        raise UserError(f"{path} is a file, not a run. Name the run's directory.")


def _mark(file: Path) -> Any:
    """Something that changes with the file."""
    try:
        known = file.stat()
    except OSError:
        return None
    return known.st_ino, known.st_size, known.st_mtime_ns


def _progress(run: Run, table: Mapping[str, np.ndarray], now: Status) -> dict[str, Any]:
    experiment = run.experiment
    each, wall = experiment.steps_per_iteration, table.get("wall")
    return {
        "step": now.iteration * each,
        "steps": experiment.iterations * each,
        "speed": each * experiment.seeds / now.pace if now.pace > 0 else math.nan,
        "left": max(0, experiment.iterations - now.iteration) * now.pace,
        "pace": now.pace,
        "wall": math.nan if wall is None else float(wall.max()),
    }


def _curve(run: Run, table: dict[str, np.ndarray], name: str) -> dict[str, Any]:
    curve = by_seed(run, name, table)
    kept = np.unique(np.linspace(0, len(curve.steps) - 1, min(POINTS, len(curve.steps))).round().astype(int))
    values = curve.values[:, kept]
    finite = values[np.isfinite(values)]
    rate = name in ("return", "success") and bool(finite.size and finite.min() >= 0 and finite.max() <= 1)
    return {
        "name": name,
        "title": CURVES[name],
        "rate": rate,  # gets its whole scale, which makes small wiggles look small
        "steps": curve.steps[kept].astype(int).tolist(),
        "mean": centre(values).tolist(),
        "lines": values[:LINES].tolist(),
    }


def _row(table: Mapping[str, np.ndarray], seed: int) -> dict[str, Any]:
    """The last row of a seed."""
    mine = np.flatnonzero(table["seed"] == seed)
    last = {name: column[mine[-1]].item() for name, column in table.items()} if mine.size else {}
    return {**last, "seed": seed, "frozen": last.get("alive") == 0}


def _plain(value: Any) -> Any:
    """For JSON, which has no NaN; floats to five digits."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return (float(f"{value:.5g}") if abs(value) < 1e6 else round(value, 1)) if math.isfinite(value) else None
    return value
