"""How good a learned distance is: one number per question, for every seed, and what the seeds say together."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import stats

from etd.lab.mazes.distance import Distances

ROUNDING = 1e-5
"""A sum of distances may fall short by so much of the largest distance and still not break the triangle inequality."""

MEANING = {
    "path spearman": "rank correlation with the shortest path, from the red square",
    "path pearson": "linear correlation with it",
    "exact spearman": "rank correlation with the exact successor distance, from the red square",
    "exact pearson": "linear correlation with it",
    "path spearman, all": "as above, over all pairs of cells",
    "path pearson, all": "",
    "exact spearman, all": "",
    "exact pearson, all": "",
    "triangle broken": "share of triples with d(x, z) > d(x, y) + d(y, z), beyond rounding",
    "triangle excess": "the mean d(x, z) - d(x, y) - d(y, z) of those, in mean distances",
    "asymmetry": "mean |d(x, y) - d(y, x)|, in mean distances",
    "asymmetry pearson": "linear correlation of d(x, y) - d(y, x) with the exact one; 0 where there is none",
    "slope": "of the least-squares line: learned = slope * exact + intercept, over all pairs",
    "intercept": "",
    "r2": "share of the learned distance's variance that the line explains",
}
"""What the scores mean, in the order of the tables."""


class Interval(NamedTuple):
    """A mean over seeds with its 95 % t interval, which is as wide as the mean where there is one seed."""

    mean: float
    low: float
    high: float


def scores(
    learned: np.ndarray, path: np.ndarray, successor: np.ndarray, red: int, to: bool = False
) -> dict[str, float]:
    """All numbers of MEANING for one learned distance [S, S]; ``to`` looks at distances to the red square instead."""
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
    """(share of triples of different cells that break the triangle inequality, their mean excess in mean distances)."""
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
    """Pearson's; NaN where one of them does not vary."""
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def _mean(values: np.ndarray) -> float:
    """The scale that sizes are told in; cosines may be negative."""
    return max(float(np.abs(values).mean()), 1e-12)


# Seeds together --------------------------------------------------------------------------------------------------


def table(found: Distances, red: int, to: bool = False) -> dict[str, dict[str, list[float]]]:
    """By learner and by score: a value per seed."""
    rows = {}
    for name, learned in found.learned.items():
        each = [scores(d, found.path, found.successor, red, to) for d in learned]
        rows[name] = {score: [row[score] for row in each] for score in MEANING}
    return rows


def interval(values: list[float]) -> Interval:
    """The mean and where it lies with 95 % confidence, by Student's t."""
    sample = np.asarray(values, float)
    mean = float(sample.mean())
    if len(sample) < 2:
        return Interval(mean, mean, mean)
    reach = float(stats.t.ppf(0.975, len(sample) - 1) * sample.std(ddof=1) / np.sqrt(len(sample)))
    return Interval(mean, mean - reach, mean + reach)
