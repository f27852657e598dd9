from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from etd.core.errors import UserError
from etd.lab.report import plot, statistics
from etd.lab.report.curves import Curves

NAN, INF = float("nan"), float("inf")
EMPTY = "MiniGrid-Empty-8x8-v0"


def ending(*values: float) -> np.ndarray:
    """Returns [S, 2] that end so."""
    return np.array([[0.0, value] for value in values])


@pytest.fixture(scope="module", autouse=True)
def untouched_generator() -> Iterator[None]:
    """rliable uses NumPy's global generator; others' draws must not depend on that."""
    np.random.seed(5)
    before = np.random.get_state()[1].tolist()
    yield
    assert np.random.get_state()[1].tolist() == before


def test_scores_are_final_returns_by_task_and_seed(logged) -> None:
    runs = [
        logged(ending(0.1, 0.2, 0.3), "a", "none"),
        logged(np.array([[0.5, 0.6], [0.7, NAN], [NAN, NAN]]), "b", "etd"),
        logged(ending(0.4, 0.5), "c", "etd", EMPTY),
    ]
    study = statistics.gather(runs)
    assert study.methods == ["etd", "no bonus"]
    assert study.tasks == ["MiniGrid-DoorKey-8x8-v0", EMPTY]
    assert statistics.shared(study) == ["MiniGrid-DoorKey-8x8-v0"]
    np.testing.assert_array_equal(statistics.scores(study, "etd"), [[0.6, 0.7, NAN], [0.4, 0.5, NAN]])
    np.testing.assert_array_equal(statistics.scores(study, "no bonus"), [[0.1, 0.2, 0.3], [NAN] * 3])
    over = statistics.scores(study, "etd", statistics.average)
    np.testing.assert_allclose(over, [[0.55, 0.35, NAN], [0.2, 0.25, NAN]])


def test_noise_makes_another_task(logged) -> None:
    plain, noisy = logged(ending(0.1), "a"), logged(ending(0.2), "b")
    noisy.experiment = replace(noisy.experiment, env=replace(noisy.experiment.env, noise=0.1))
    study = statistics.gather([plain, noisy])
    assert study.tasks == ["MiniGrid-DoorKey-8x8-v0", "MiniGrid-DoorKey-8x8-v0 (noise 0.1)"]
    assert study.methods == ["etd"]
    assert statistics.shared(study) == []
    assert len(plot.draw_curves([plain, noisy]).axes) == 2


def test_a_suites_own_settings_do_not_name_its_task(logged) -> None:
    run = logged(ending(0.1), "a", env="HalfCheetahVelSparse-v0")
    assert plot.task(run) == "HalfCheetahVelSparse-v0"
    run.experiment = replace(run.experiment, env=replace(run.experiment.env, normalise=False))
    assert plot.task(run) == "HalfCheetahVelSparse-v0 (normalise False)"


def test_first_method_is_the_reference_without_etd(logged) -> None:
    runs = [logged(ending(0.1), "a", "rnd"), logged(ending(0.1), "b", "none")]
    assert statistics.gather(runs).methods == ["rnd", "no bonus"]


def test_uneven_training_is_seen(logged) -> None:
    runs = [
        logged(np.zeros((1, 3)), "a", "rnd"),
        logged(np.zeros((1, 2)), "b"),
        logged(np.zeros((1, 2)), "c", env=EMPTY),
    ]
    study = statistics.gather(runs)
    assert [statistics.uneven(study, task) for task in study.tasks] == [True, False]
    assert statistics.spacing(study) == 1000


def test_steps_to_a_return() -> None:
    steps = np.array([10.0, 20.0, 30.0])
    some = Curves([0, 1, 2], steps, np.array([[NAN, 0.9, 0.0], [0.95, NAN, NAN], [0.0, 0.1, 0.2]]))
    assert statistics.reached(some, 0.9) == (20.0, 2, 3)
    assert statistics.reached(some, 0.95) == (INF, 1, 3)
    half = Curves([0, 1], steps, np.array([[0.0, 0.9, 0.9], [0.0, 0.0, 0.0]]))
    assert statistics.reached(half, 0.9) == (INF, 1, 2)
    assert statistics.reached(Curves([0, 1], np.empty(0), np.empty((2, 0))), 0.9) == (INF, 0, 2)


@pytest.mark.parametrize(
    ("returns", "expected"),
    [
        ([[0.0, 0.91, 0.2]], 0.9),
        ([[0.0, 0.8, 0.6], [0.0, 0.1, 0.5]], 0.54),
        ([[0.0, 0.0, 0.0]], None),
        ([[NAN, NAN, NAN]], None),
        ([[-3.0, -2.0, -1.0]], None),
        ([[0.0, 5.0, 4.0]], 3.6),
    ],
)
def test_threshold(logged, returns: list[list[float]], expected: float | None) -> None:
    study = statistics.gather([logged(np.array(returns))])
    found = statistics.threshold(study, study.tasks[0])
    assert found == (expected if expected is None else pytest.approx(expected))


@pytest.mark.usefixtures("rliable")
@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (4, 1), (5, 1), (5, 2), (7, 3), (12, 1)])
def test_one_number_is_rliables(shape: tuple[int, int]) -> None:
    from rliable import metrics

    rng = np.random.default_rng(0)
    # few values, so that there are ties
    ours, theirs = rng.integers(6, size=shape) / 5, rng.integers(6, size=(4, shape[1])) / 5
    assert statistics.middle(ours) == pytest.approx(metrics.aggregate_iqm(ours))
    assert statistics.better(ours, theirs) == pytest.approx(metrics.probability_of_improvement(ours, theirs))
    assert statistics.better(ours, ours) == pytest.approx(metrics.probability_of_improvement(ours, ours))


@pytest.mark.usefixtures("rliable")
@pytest.mark.parametrize("seeds", [1, 2, 3, 4, 5, 8, 11])
def test_curves_have_rliables_centre_and_band(seeds: int) -> None:
    """One task is one stratum. The bounds are quantiles of different draws, so they agree up to that."""
    from rliable import library, metrics

    values = np.random.default_rng(seeds).random((seeds, 1))
    state = np.random.get_state()
    np.random.seed(1)
    point, bounds = library.get_interval_estimates(
        {"": values}, lambda x: np.array([metrics.aggregate_iqm(x)]), reps=4000
    )
    np.random.set_state(state)
    np.testing.assert_allclose(plot.centre(values), point[""])
    np.testing.assert_allclose(np.array(plot.band(values)), bounds[""], atol=0.03)


@pytest.mark.usefixtures("rliable")
def test_iqm_by_hand_and_its_interval() -> None:
    values = np.array([[0.0, 0.1, 0.2, 0.3, 0.4], [0.6, 0.7, 0.8, 0.9, 1.0]])
    found = statistics.iqm(values)
    assert found is not None
    # ten numbers, two cut from either end
    assert found.value == pytest.approx((0.2 + 0.3 + 0.4 + 0.6 + 0.7 + 0.8) / 6)
    assert found.low < found.value < found.high
    assert found.tasks == 2
    assert statistics.iqm(values) == found
    # Seeds are drawn within a task: tasks whose seeds agree have no uncertainty, however far apart they are.
    assert statistics.iqm(np.array([[0.1] * 5, [0.9] * 5])) == pytest.approx((0.5, 0.5, 0.5, 2))


@pytest.mark.usefixtures("rliable")
def test_improvement_by_hand_and_its_interval() -> None:
    ours = np.array([[0.1, 0.5, 0.9], [1.0, 1.0, 1.0]])
    theirs = np.array([[0.5, 0.2], [0.0, 1.0]])
    found = statistics.improvement(ours, theirs)
    assert found is not None
    # first task: 3 of 6 pairs won and one tied; second: 3 won, 3 tied
    assert found.value == pytest.approx((3.5 / 6 + 4.5 / 6) / 2)
    assert 0 <= found.low < found.value < found.high <= 1
    back = statistics.improvement(theirs, ours)
    assert back is not None
    assert back.value == pytest.approx(1 - found.value)
    sure = statistics.improvement(np.full((2, 5), 0.9), np.full((2, 4), 0.1))
    assert sure == (1.0, 1.0, 1.0, 2)


@pytest.mark.usefixtures("rliable")
def test_only_common_tasks_and_seeds_with_a_score_count() -> None:
    ours = np.array([[0.9, NAN, 0.8], [0.0, 0.0, 0.0]])
    theirs = np.array([[0.1, 0.85, NAN], [NAN, NAN, NAN]])
    found = statistics.improvement(ours, theirs)
    assert found is not None
    assert (found.value, found.tasks) == (0.75, 1)
    assert statistics.improvement(ours[1:], theirs[1:]) is None
    assert statistics.iqm(theirs[1:]) is None


@pytest.mark.usefixtures("rliable")
def test_one_seed_has_no_interval() -> None:
    np.testing.assert_allclose(statistics.iqm(np.array([[0.2], [0.4]])), (0.3, NAN, NAN, 2))
    np.testing.assert_allclose(statistics.improvement(np.array([[0.2]]), np.array([[0.1, 0.3]])), (0.5, NAN, NAN, 1))


def test_without_rliable_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rliable", None)
    with pytest.raises(UserError, match=r"pip install 'etd\[report\]'"):
        statistics.iqm(np.zeros((1, 2)))


def test_a_broken_rliable_is_as_good_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """arch 7 fails with a TypeError beside pandas 3."""
    (tmp_path / "rliable").mkdir()
    (tmp_path / "rliable" / "__init__.py").write_text("raise TypeError('deprecate_kwarg')")
    for name in [name for name in sys.modules if name.split(".")[0] == "rliable"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="cannot be imported here"):
        statistics.improvement(np.zeros((1, 2)), np.zeros((1, 2)))
