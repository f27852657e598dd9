"""Statistics of runs: the results of one, and a comparison of several methods on several tasks.

Across tasks the statistics are rliable's (Agarwal et al., Deep Reinforcement Learning at the Edge of the Statistical
Precipice, 2021): interquartile means over all tasks and seeds, and probabilities of improvement, with 95 % intervals
from resampling the seeds of each task separately. On a single task these are ``curves.centre`` and ``curves.band``.
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
"""The mean return that counts as solved, as the paper's curves are read; its first step is reported."""
RESAMPLES = 2000


class Numbers(NamedTuple):
    """The results of a run. Lists are per seed, with NaN or None where there is no value."""

    steps: int
    final_return: list[float]
    final_success: list[float] | None
    """if the environment defines success"""
    solved_at: list[int | None] | None
    """steps to a mean return of SOLVED, if no return exceeds 1"""
    first_success: list[int | None] | None
    wall: float
    """seconds, including compilation and all resumes"""
    throughput: float
    """steps per second of all seeds together, without compilation"""
    frozen: list[int]
    """seeds that hit a non-finite loss"""
    final_score: list[float] | None = None
    """Crafter's, if the environment has achievements"""


class Results(NamedTuple):
    """The returns of some methods on some tasks."""

    tasks: list[str]
    methods: list[str]
    """the one the others are compared with comes first: etd, if present"""
    returns: dict[tuple[str, str], Curves]
    """by (task, method)"""


class Estimate(NamedTuple):
    """A number and its 95 % interval, NaN with a single seed."""

    value: float
    low: float
    high: float
    tasks: int
    """how many tasks it covers"""


class Reached(NamedTuple):
    """How soon a method's seeds reached a return."""

    median: float
    """steps, over all seeds; infinite if half of them or more did not reach it"""
    reached: int
    seeds: int


# One run ---------------------------------------------------------------------------------------------------------


def numbers(run: Run) -> Numbers:
    """The results of ``run``, from its metrics."""
    table = run.metrics()
    seeds = run.experiment.seeds
    if not table:
        return Numbers(0, [np.nan] * seeds, [np.nan] * seeds, [None] * seeds, [None] * seeds, 0.0, np.nan, [])
    column = {
        name: by_seed(run, name, table)
        for name in ("return", "success", "first_success", "score", "alive", "wall")
        if name in table or name in ("return", "alive", "wall")
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
    """[S] the last value of each seed; NaN, as in a partial row, does not count."""
    finite = [row[np.isfinite(row)] for row in curve.values]
    return np.array([row[-1] if row.size else np.nan for row in finite])


def highest(curve: Curves) -> float:
    """The highest value of any seed."""
    return float(np.fmax.reduce(curve.values, axis=None, initial=-np.inf))


def average(curve: Curves) -> Floats:
    """[S] the mean of each seed's values, which is higher the sooner it learns; before the first value it is 0."""
    return np.array([np.nan_to_num(row).mean() if np.isfinite(row).any() else np.nan for row in curve.values])


def first(curve: Curves, level: float) -> Floats:
    """[S] the first logged step at which each seed is at ``level`` or above, or infinity."""
    if not len(curve.steps):
        return np.full(len(curve.seeds), np.inf)
    above = curve.values >= level
    return np.where(above.any(1), curve.steps[above.argmax(1)], np.inf)


def _times(wall: Curves) -> tuple[float, float]:
    """(total seconds, steps per second). By the median iteration, since the first after each start includes
    compilation."""
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
    """Whether the task's runs ended at different steps, by more than the 1 % that rounding to iterations may cause."""
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
    """The target return: SOLVED; 0.9 of the best final return if no seed reaches SOLVED or returns exceed 1; None if
    no final return is positive."""
    curves = [curve for (there, _), curve in study.returns.items() if there == task]
    if SOLVED <= max(map(highest, curves)) <= 1:
        return SOLVED
    best = np.concatenate([final(curve) for curve in curves])
    return 0.9 * float(np.nanmax(best)) if (best > 0).any() else None


def spacing(study: Results) -> float:
    """The largest number of steps between two logged rows."""
    return max((np.diff(curve.steps, prepend=0.0).max(initial=0.0) for curve in study.returns.values()), default=0.0)


def reached(curve: Curves, level: float) -> Reached:
    """How soon ``level`` is reached, and by how many seeds."""
    steps = first(curve, level)
    return Reached(float(np.median(steps)), int(np.isfinite(steps).sum()), len(steps))


# Over tasks, by rliable ------------------------------------------------------------------------------------------


def iqm(values: Floats) -> Estimate | None:
    """The interquartile mean over tasks and seeds of scores [K, S]; None where there are none."""
    library, rows = _rliable(), _present(values)
    return _estimate(library, middle, _table(values[rows])) if rows.any() else None


def improvement(ours: Floats, theirs: Floats) -> Estimate | None:
    """The probability that a seed of ours scores above one of theirs, from scores [K, S] and [K, R]; None without a
    common task."""
    library, rows = _rliable(), _present(ours) & _present(theirs)
    return _estimate(library, better, _table(ours[rows]), _table(theirs[rows])) if rows.any() else None


# The bootstrap is rliable's. The two statistics it resamples are computed here: equal to rliable's own, but ten times
# as fast without scipy's checks and significance tests, which would take most of a report's time.


def middle(table: Floats) -> float:
    """The interquartile mean of a table [S, K], or the mean of fewer than four numbers."""
    return float(centre(table.reshape(-1, 1))[0])


def better(ours: Floats, theirs: Floats) -> float:
    """The share of seed pairs in which ours is higher, with ties counted half, averaged over tasks; from tables [S, K]
    and [R, K]."""
    higher, tied = ours[:, None] > theirs[None], ours[:, None] == theirs[None]
    return float((higher + 0.5 * tied).mean())


def _present(values: Floats) -> np.ndarray:
    return np.asarray(np.isfinite(values).any(1))


def _table(values: Floats) -> Floats:
    """[K, S] as rliable takes it, [S, K]. Seeds without a score are left out; if tasks then have different numbers of
    seeds, the first ones of each are used."""
    rows = [row[np.isfinite(row)] for row in values]
    return np.stack([row[: min(map(len, rows))] for row in rows], axis=1)


def _estimate(library: Any, measure: Callable[..., float], *tables: Floats) -> Estimate:
    value, tasks = float(measure(*tables)), tables[0].shape[1]
    if min(map(len, tables)) == 1:
        return Estimate(value, np.nan, np.nan, tasks)
    given = {"": tables[0] if len(tables) == 1 else list(tables)}
    # rliable 1.2 draws from NumPy's global generator and ignores the random state it is given.
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
    except Exception as error:  # its dependency arch raises a TypeError for an unsupported pandas
        what = "Interquartile means over tasks and probabilities of improvement need rliable"
        remedy = "pip install 'etd[report]', on Python 3.13 or older"
        raise UserError(f"{what}, which cannot be imported here: {remedy}") from error
    return library
