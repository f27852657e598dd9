"""How good a learned distance is: scores for every seed, and their mean and interval over seeds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import stats

from etd.lab.mazes.distance import Distances

ROUNDING = 1e-5
"""Tolerance for the triangle inequality, as a fraction of the largest distance."""

MEANING = {
    "path spearman": "rank correlation with the shortest path, from the red square",
    "path pearson": "linear correlation with the shortest path, from the red square",
    "exact spearman": "rank correlation with the exact successor distance, from the red square",
    "exact pearson": "linear correlation with the exact successor distance, from the red square",
    "path spearman, all": "rank correlation with the shortest path, over all pairs of cells",
    "path pearson, all": "linear correlation with the shortest path, over all pairs of cells",
    "exact spearman, all": "rank correlation with the exact successor distance, over all pairs of cells",
    "exact pearson, all": "linear correlation with the exact successor distance, over all pairs of cells",
    "triangle broken": "share of triples with d(x, z) > d(x, y) + d(y, z), beyond rounding",
    "triangle excess": "mean d(x, z) - d(x, y) - d(y, z) of those, relative to the mean distance",
    "asymmetry": "mean |d(x, y) - d(y, x)|, relative to the mean distance",
    "asymmetry pearson": "linear correlation of d(x, y) - d(y, x), learned and exact; 0 for a symmetric distance",
    "slope": "of the line learned = slope * exact + intercept, fitted over all pairs of cells",
    "intercept": "of the line learned = slope * exact + intercept",
    "r2": "share of the learned distance's variance explained by a line in the exact one",
}
"""What each score means, in the order of the tables."""


class Interval(NamedTuple):
    """A mean over seeds with its 95 % t interval, of width zero for a single seed."""

    mean: float
    low: float
    high: float


def scores(
    learned: np.ndarray, path: np.ndarray, successor: np.ndarray, red: int, to: bool = False
) -> dict[str, float]:
    """All scores in MEANING of one learned distance [S, S]; ``to`` scores distances to the red square, not from it."""
    d = np.asarray(learned, float)
    pairs = np.isfinite(path) & ~np.eye(len(d), dtype=bool)
    here = np.zeros_like(pairs)
    here[(slice(None), red) if to else red] = True
    found: dict[str, float] = {}
    for where, chosen in (("", pairs & here), (", all", pairs)):
        for what, exact in (("path", path), ("exact", successor)):
            found[f"{what} spearman{where}"] = _correlation(stats.rankdata(exact[chosen]), stats.rankdata(d[chosen]))
            found[f"{what} pearson{where}"] = _correlation(exact[chosen], d[chosen])
    found["triangle broken"], found["triangle excess"] = triangle(d)
    found |= _asymmetry(d, successor, pairs & pairs.T) | _calibration(d[pairs], successor[pairs])
    return {name: found[name] for name in MEANING}


def triangle(d: np.ndarray) -> tuple[float, float]:
    """(share of triples of different cells that violate the triangle inequality, their mean excess relative to the mean
    distance)."""
    count, slack = len(d), ROUNDING * np.abs(d).max()
    others = ~np.eye(count, dtype=bool)
    broken, excess = 0, 0.0
    for middle in range(count):
        over = d - d[:, middle, None] - d[middle]
        bad = (over > slack) & others
        bad[middle] = bad[:, middle] = False
        broken += int(bad.sum())
        excess += float(over[bad].sum())
    triples = max(count * (count - 1) * (count - 2), 1)
    return broken / triples, excess / max(broken, 1) / _mean(d[others])


def _asymmetry(d: np.ndarray, exact: np.ndarray, pairs: np.ndarray) -> dict[str, float]:
    learned, true = (d - d.T)[pairs], exact[pairs] - exact.T[pairs]
    agreement = _correlation(true, learned) if np.abs(learned).max(initial=0) > ROUNDING * np.abs(d).max() else 0.0
    return {"asymmetry": float(np.abs(learned).mean() / _mean(d[pairs])), "asymmetry pearson": agreement}


def _calibration(learned: np.ndarray, exact: np.ndarray) -> dict[str, float]:
    slope, intercept = np.polyfit(exact, learned, 1) if len(exact) > 1 else (np.nan, np.nan)
    return {"slope": float(slope), "intercept": float(intercept), "r2": _correlation(exact, learned) ** 2}


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Pearson's correlation; NaN if one of them does not vary."""
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def _mean(values: np.ndarray) -> float:
    """The mean absolute value, to make scores relative; cosines may be negative."""
    return max(float(np.abs(values).mean()), 1e-12)


# Seeds together --------------------------------------------------------------------------------------------------


def table(found: Distances, red: int, to: bool = False) -> dict[str, dict[str, list[float]]]:
    """A value per seed, by learner and score."""
    rows = {}
    for name, learned in found.learned.items():
        each = [scores(d, found.path, found.successor, red, to) for d in learned]
        rows[name] = {score: [row[score] for row in each] for score in MEANING}
    return rows


def interval(values: list[float]) -> Interval:
    """The mean and its 95 % confidence interval, by Student's t."""
    sample = np.asarray(values, float)
    mean = float(sample.mean())
    if len(sample) < 2:
        return Interval(mean, mean, mean)
    reach = float(stats.t.ppf(0.975, len(sample) - 1) * sample.std(ddof=1) / np.sqrt(len(sample)))
    return Interval(mean, mean - reach, mean + reach)
