"""Runs as numbers: what one came to, and what several methods on several tasks say together.

Across tasks the numbers are rliable's (Agarwal et al., Deep Reinforcement Learning at the Edge of the Statistical
Precipice, 2021): interquartile means over all tasks and seeds, and probabilities of improvement, with 95 % intervals
from resampling the seeds of each task on their own. On a single task these are ``curves.centre`` and ``curves.band``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from etd.core.errors import UserError
from etd.lab.report.curves import Curves, Floats, by_seed, centre
from etd.lab.report.plot import labels, task
from etd.lab.runs.store import Run

SOLVED = 0.9
"""The mean return whose first step is reported, as the paper's curves are read."""
RESAMPLES = 2000


class Numbers(NamedTuple):
    """What a run came to. Lists are per seed, with NaN or None where there is nothing to say."""

    steps: int
    final_return: list[float]
    final_success: list[float] | None
    """where an episode can be a success"""
    solved_at: list[int | None] | None
    """steps to a mean return of SOLVED, where none is beyond 1"""
    first_success: list[int | None] | None
    wall: float
    """seconds, compilation and all resumptions included"""
    throughput: float
    """steps per second of all seeds together, compilation left out"""
    frozen: list[int]
    """seeds that met a loss that is not finite"""
    final_score: list[float] | None = None
    """Crafter's, where achievements are counted"""


class Results(NamedTuple):
    """The returns of some methods on some tasks."""

    tasks: list[str]
    methods: list[str]
    """the one the others are compared with comes first: etd, where it is among them"""
    returns: dict[tuple[str, str], Curves]
    """by (task, method)"""


class Estimate(NamedTuple):
    """A number and its 95 % interval, NaN where there is one seed only."""

    value: float
    low: float
    high: float
    tasks: int
    """how many tasks it is of"""


class Reached(NamedTuple):
    """How soon a method's seeds got to a return."""

    median: float
    """steps, over all seeds; infinite where half of them or more did not get there"""
    reached: int
    seeds: int


# One run ---------------------------------------------------------------------------------------------------------


def numbers(run: Run) -> Numbers:
    """Read them off the run's metrics."""
    table = run.metrics()
    seeds = run.experiment.seeds
    if not table:
        return Numbers(0, [np.nan] * seeds, [np.nan] * seeds, [None] * seeds, [None] * seeds, 0.0, np.nan, [])
    column = {
        name: by_seed(run, name, table)
        for name in ("return", "success", "first_success", "score", "alive", "wall")
        if name in table
    }
    returns, alive = column["return"], column["alive"]
    return Numbers(
        int(returns.steps[-1]),
        final(returns).tolist(),
        final(column["success"]).tolist() if "success" in column else None,
        None if highest(returns) > 1 else [int(s) if np.isfinite(s) else None for s in first(returns, SOLVED)],
        [int(step) if step >= 0 else None for step in final(column["first_success"])] if "success" in column else None,
        *_times(column["wall"]),
        [seed for seed, value in zip(alive.seeds, final(alive), strict=True) if value == 0],
        final(column["score"]).tolist() if "score" in column else None,
    )


def final(curve: Curves) -> Floats:
    """[S] the newest value of each seed; a torn last row has none."""
    finite = [row[np.isfinite(row)] for row in curve.values]
    return np.array([row[-1] if row.size else np.nan for row in finite])


def highest(curve: Curves) -> float:
    """The highest value of any seed."""
    return float(np.fmax.reduce(curve.values, axis=None, initial=-np.inf))


def average(curve: Curves) -> Floats:
    """[S] the mean of each seed's values, which is higher the sooner it learns; before its first value a seed has 0."""
    return np.array([np.nan_to_num(row).mean() if np.isfinite(row).any() else np.nan for row in curve.values])


def first(curve: Curves, level: float) -> Floats:
    """[S] the step at which each seed is first seen at ``level`` or above, or infinity."""
    if not len(curve.steps):
        return np.full(len(curve.seeds), np.inf)
    above = curve.values >= level
    return np.where(above.any(1), curve.steps[above.argmax(1)], np.inf)


def _times(wall: Curves) -> tuple[float, float]:
    """(seconds in all, steps per second). The median iteration counts: the first after a start holds a compilation."""
    clock = np.nanmax(wall.values, axis=0)
    taken, done = np.diff(clock), np.diff(wall.steps) * len(wall.seeds)
    rate = float(np.median(done / np.maximum(taken, 1e-9))) if len(taken) else float("nan")
    return float(clock.max()), rate


# Methods and tasks -----------------------------------------------------------------------------------------------


def gather(runs: list[Run]) -> Results:
    """The runs' returns by task and method; methods are named as in the learning curves."""
    names = labels(runs)
    returns = {(task(run), name): by_seed(run, "return") for run, name in zip(runs, names, strict=True)}
    methods = sorted(dict.fromkeys(names), key=lambda name: name != "etd")
    return Results(list(dict.fromkeys(where for where, _ in returns)), methods, returns)


def shared(study: Results) -> list[str]:
    """The tasks that more than one method was trained on."""
    return [task for task in study.tasks if sum(there == task for there, _ in study.returns) > 1]


def uneven(study: Results, task: str) -> bool:
    """Whether the task's runs ended at different steps, by more than the hundredth that whole iterations may make."""
    ends = [curve.steps[-1:].sum() for (there, _), curve in study.returns.items() if there == task]
    return min(ends) < 0.99 * max(ends)


def scores(study: Results, method: str, measure: Callable[[Curves], Floats] = final) -> Floats:
    """[K, S]: the final return of each seed on each task, or another measure of it; NaN where there is none."""
    nothing = Curves([], np.empty(0), np.empty((0, 0)))
    rows = [measure(study.returns.get((task, method), nothing)) for task in study.tasks]
    table = np.full((len(rows), max(map(len, rows))), np.nan)
    for row, values in zip(table, rows, strict=True):
        row[: len(values)] = values
    return table


def threshold(study: Results, task: str) -> float | None:
    """The return to wait for: SOLVED, or 0.9 of the best final return where nobody gets there or returns go beyond 1,
    or None where all is zero."""
    curves = [curve for (there, _), curve in study.returns.items() if there == task]
    if SOLVED <= max(map(highest, curves)) <= 1:
        return SOLVED
    best = np.concatenate([final(curve) for curve in curves])
    return 0.9 * float(np.nanmax(best)) if (best > 0).any() else None


def spacing(study: Results) -> float:
    """The most steps between two logged rows."""
    return max((np.diff(curve.steps, prepend=0.0).max(initial=0.0) for curve in study.returns.values()), default=0.0)


def reached(curve: Curves, level: float) -> Reached:
    """How soon, and by how many seeds."""
    steps = first(curve, level)
    return Reached(float(np.median(steps)), int(np.isfinite(steps).sum()), len(steps))


# Over tasks, by rliable ------------------------------------------------------------------------------------------


def iqm(values: Floats) -> Estimate | None:
    """The interquartile mean over tasks and seeds of scores [K, S]; None where there are none."""
    library, rows = _rliable(), _present(values)
    return _estimate(library, middle, _table(values[rows])) if rows.any() else None


def improvement(ours: Floats, theirs: Floats) -> Estimate | None:
    """How probably a seed of ours ends above one of theirs, from scores [K, S] and [K, R]; None without a common
    task."""
    library, rows = _rliable(), _present(ours) & _present(theirs)
    return _estimate(library, better, _table(ours[rows]), _table(theirs[rows])) if rows.any() else None


# The bootstrap is rliable's. The two numbers it resamples are computed here, equal to rliable's own but ten times as
# fast without scipy's checks and tests of significance, which would take most of a report's time.


def middle(table: Floats) -> float:
    """The interquartile mean of a table [S, K]; of fewer than four numbers their mean."""
    return float(centre(table.reshape(-1, 1))[0])


def better(ours: Floats, theirs: Floats) -> float:
    """The share of pairs of seeds in which ours is higher, a tie counting half, averaged over tasks; from tables [S, K]
    and [R, K]."""
    higher, tied = ours[:, None] > theirs[None], ours[:, None] == theirs[None]
    return float((higher + 0.5 * tied).mean())


def _present(values: Floats) -> np.ndarray:
    return np.asarray(np.isfinite(values).any(1))


def _table(values: Floats) -> Floats:
    """[K, S] as rliable takes it, [S, K]. Seeds without a score are left out; where tasks then have different numbers
    of seeds, the first of each are taken."""
    rows = [row[np.isfinite(row)] for row in values]
    return np.stack([row[: min(map(len, rows))] for row in rows], axis=1)


def _estimate(library: Any, measure: Callable[..., float], *tables: Floats) -> Estimate:
    value, tasks = float(measure(*tables)), tables[0].shape[1]
    if min(map(len, tables)) == 1:
        return Estimate(value, np.nan, np.nan, tasks)
    given = {"": tables[0] if len(tables) == 1 else list(tables)}
    # rliable 1.2 draws from NumPy's global generator, whatever random state it is given.
    state = np.random.get_state()
    np.random.seed(0)
    try:
        _, bounds = library.get_interval_estimates(given, lambda *t: np.array([measure(*t)]), reps=RESAMPLES)
    finally:
        np.random.set_state(state)
    low, high = bounds[""][:, 0]
    return Estimate(value, float(low), float(high), tasks)


def _rliable() -> Any:
    try:
        from rliable import library
    except Exception as error:  # arch, below it, meets a pandas it does not know with a TypeError
        what = "Interquartile means over tasks and probabilities of improvement need rliable"
        raise UserError(f"{what}, which cannot be imported here: pip install 'etd[report]'") from error
    return library
