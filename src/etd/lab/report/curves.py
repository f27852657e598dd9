"""A run's metrics as curves, one per seed, and their mean and interval over seeds."""

from __future__ import annotations

from collections import Counter
from itertools import combinations_with_replacement
from math import factorial, prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from etd.core.errors import UserError
from etd.lab.runs.store import Run

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

RESAMPLES = 1000
QUARTILES = 4
"""From this many seeds on, the mean is the interquartile one."""
EPISODIC = ("return", "length", "states_per_episode", "success", "score")
"""Metrics of finished episodes."""


class Curves(NamedTuple):
    """One metric of a run."""

    seeds: list[int]
    steps: Floats
    """[I] environment steps after each iteration"""
    values: Floats
    """[S, I]; NaN where a seed has no value yet"""


def by_seed(run: Run, metric: str, table: dict[str, np.ndarray] | None = None) -> Curves:
    """The metric's column as one row per seed; ``table`` is the run's metrics, if already read.

    Metrics of episodes are reported once every environment has finished an episode on average: where most episodes time
    out, the few that end sooner are the successful ones.
    """
    table = run.metrics() if table is None else table
    seeds = list(run.seeds)
    if not table:
        return Curves(seeds, np.empty(0), np.empty((len(seeds), 0)))
    for needed in (metric, "step"):
        if needed not in table:
            raise UserError(f"{run.path} has no metric {needed!r}. It has {', '.join(table)}.")
    steps, column = np.unique(table["step"], return_inverse=True)
    values = np.full((len(seeds), len(steps)), np.nan)
    known = table[metric]
    if metric in EPISODIC and "episodes" in table:
        known = np.where(table["episodes"] >= run.experiment.num_envs, known, np.nan)
    values[table["seed"].astype(int) - seeds[0], column] = known
    return Curves(seeds, steps, values)


def centre(values: Floats) -> Floats:
    """[..., S, I] to [..., I]: the mean over seeds, or the interquartile mean of four or more; NaNs are left out.

    The same as rliable's, which does not handle NaNs.
    """
    ordered = np.sort(values, axis=-2)  # NaNs go last
    count = np.isfinite(values).sum(-2, keepdims=True)
    cut = np.where(count >= QUARTILES, count // 4, 0)
    rank = np.arange(values.shape[-2])[:, None]
    inner = (rank >= cut) & (rank < count - cut)
    total = np.where(inner, ordered, 0.0).sum(-2)
    size = inner.sum(-2)
    return np.where(size > 0, total / np.maximum(size, 1), np.nan)


def band(values: Floats) -> tuple[Floats, Floats]:
    """A 95 % bootstrap interval of ``centre`` over seeds, [S, I] to two [I]; the same on every call.

    One task is one stratum, so this is also the stratified bootstrap.
    """
    draws, times = _draws(len(values))
    low, high = np.full((2, values.shape[1]), np.nan)
    for point in np.flatnonzero(np.isfinite(values).any(0)):  # one at a time, to bound the memory
        resampled = np.repeat(centre(values[draws, point].T), times)
        low[point], high[point] = np.nanpercentile(resampled, [2.5, 97.5], method="inverted_cdf")
    return low, high


def _draws(seeds: int) -> tuple[np.ndarray, np.ndarray]:
    """Resamples of the seeds, [R, S], and how often each counts, [R]. Few seeds are resampled in every possible way:
    their interquartile mean takes so few values that a sampled quantile may be the neighbouring one."""
    if seeds > 5:
        return np.random.default_rng(0).integers(seeds, size=(RESAMPLES, seeds)), np.ones(RESAMPLES, int)
    draws = list(combinations_with_replacement(range(seeds), seeds))
    orders = [factorial(seeds) // prod(map(factorial, Counter(draw).values())) for draw in draws]
    return np.array(draws), np.array(orders)
