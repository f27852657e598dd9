"""Scores of distances whose scores are known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from etd.lab.mazes.scores import MEANING, interval, scores, triangle


@pytest.fixture
def line() -> np.ndarray:
    return np.abs(np.arange(8.0)[:, None] - np.arange(8))


def test_the_truth_scores_full_marks(line) -> None:
    found = scores(3 * line + 1 - np.eye(8), line, line, 0)
    assert list(found) == list(MEANING)
    for name in ("path spearman", "exact pearson", "path pearson, all", "exact spearman, all", "r2"):
        assert found[name] == pytest.approx(1)
    assert (found["slope"], found["intercept"]) == pytest.approx((3, 1))
    assert found["triangle broken"] == found["asymmetry"] == found["asymmetry pearson"] == 0


def test_correlations_are_scipys(rng, line) -> None:
    learned, exact = rng.random((8, 8)), rng.random((8, 8))
    off = ~np.eye(8, dtype=bool)
    found, backward = scores(learned, line, exact, 2), scores(learned, line, exact, 2, to=True)
    rest = np.arange(8) != 2
    assert found["path spearman"] == pytest.approx(stats.spearmanr(learned[2, rest], line[2, rest])[0])
    assert backward["exact pearson"] == pytest.approx(stats.pearsonr(learned[rest, 2], exact[rest, 2])[0])
    assert found["exact spearman, all"] == pytest.approx(stats.spearmanr(learned[off], exact[off])[0])
    fit = stats.linregress(exact[off], learned[off])
    assert (found["slope"], found["intercept"]) == pytest.approx((fit.slope, fit.intercept))
    assert found["r2"] == pytest.approx(fit.rvalue**2)


def test_broken_triangles_are_counted() -> None:
    d = np.array([[0, 1, 5.0], [1, 0, 1], [5, 1, 0]])  # 5 > 1 + 1, there and back
    share, excess = triangle(d)
    assert share == pytest.approx(2 / 6)
    assert excess == pytest.approx(3 / np.mean([1, 5, 1, 1, 5, 1]))


def test_triangles_have_three_different_corners(line) -> None:
    """A negative d(x, x) would break d(x, z) <= d(x, x) + d(x, z); that is no triangle."""
    assert triangle(line - 0.1 * np.eye(8)) == (0, 0)
    assert triangle(line + 0.1 * np.eye(8)) == (0, 0)


def test_rounding_breaks_no_triangle(rng, line) -> None:
    assert triangle(line + 1e-6 * rng.random((8, 8)))[0] == 0
    assert triangle(line**2)[0] > 0.1


def test_asymmetry_is_held_against_the_exact_one(line) -> None:
    ring = (np.arange(8)[None] - np.arange(8)[:, None]) % 8.0
    assert scores(2 * ring, ring, ring, 0)["asymmetry pearson"] == pytest.approx(1)
    assert scores(ring.T, ring, ring, 0)["asymmetry pearson"] == pytest.approx(-1)
    assert scores(line, ring, ring, 0)["asymmetry pearson"] == 0


def test_what_cannot_be_reached_is_left_out(line) -> None:
    path = line.copy()
    path[5:, :5] = np.inf
    found = scores(line, path, path, 0)
    assert found["path pearson, all"] == pytest.approx(1)
    assert all(np.isfinite(list(found.values())))


def test_a_constant_has_no_correlation(line) -> None:
    assert np.isnan(scores(np.ones((8, 8)), line, line, 0)["path spearman"])


def test_interval_is_students() -> None:
    sample = [0.1, 0.4, 0.35, 0.8, 0.2]
    expected = stats.t.interval(0.95, 4, np.mean(sample), stats.sem(sample))
    assert interval(sample)[1:] == pytest.approx(expected)
    assert interval([0.5]) == (0.5, 0.5, 0.5)
