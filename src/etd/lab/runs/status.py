"""Whether a run is being trained, as far as one can tell by only looking."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from etd.lab.runs import lock

if TYPE_CHECKING:
    from etd.lab.runs.store import Run

PATIENCE = 5.0
"""Seconds, or three iterations if they take longer, without a row after which a process that is not seen is gone."""
RECENT = 20
"""Iterations whose median tells the pace."""


class Status(NamedTuple):
    """How far a run is."""

    state: Literal["not begun", "starting", "running", "stopped", "finished"]
    """starting: a process has it but logged nothing yet"""
    iteration: int
    touched: float
    """when it was last written to, in seconds since 1970"""
    pace: float
    """seconds per iteration of late; NaN if unknown"""
    seen: bool
    """whether its process is seen, on this machine"""


def status(run: Run, table: Mapping[str, np.ndarray], local: bool = False) -> Status:
    """The status of a run with these metrics. A process on another machine is known only by what it writes; ``local``
    says that it is on this one, so that it is gone as soon as it is not seen."""
    iteration = int(table["iteration"].max()) if table else 0
    touched, pace, held = _touched(run), _pace(table), lock.is_held(run.path)
    lately = time.time() - touched < max(PATIENCE, 0.0 if np.isnan(pace) else 3 * pace)
    state: Literal["not begun", "starting", "running", "stopped", "finished"]
    if held:
        state = "running" if iteration else "starting"
    elif iteration >= run.experiment.iterations:
        state = "finished"
    elif not iteration:
        state = "not begun"
    else:
        state = "running" if lately and not local else "stopped"
    return Status(state, iteration, touched, pace, held)


def _touched(run: Run) -> float:
    latest = 0.0
    for file in (run.metrics_file, run.path / "run.json", run.path / "checkpoints"):
        with suppress(OSError):
            latest = max(latest, file.stat().st_mtime)
    return latest


def _pace(table: Mapping[str, np.ndarray]) -> float:
    """By the median: the first iteration after each start includes compilation."""
    if "wall" not in table:
        return float("nan")
    _, first = np.unique(table["iteration"], return_index=True)
    taken = np.diff(table["wall"][first][-RECENT - 1 :].astype(float))
    return float(np.median(taken)) if taken.size else float("nan")
