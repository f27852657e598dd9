"""Exact distances: the paper's propositions on random chains, and the numbers of its mazes."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from etd.core.errors import UserError
from etd.envs.maze import MAZES, Maze, transitions
from etd.lab.mazes.exact import (
    hitting_distance,
    hitting_time,
    occupancy,
    policy_matrix,
    shortest_path,
    successor_distance,
)
from etd.training import presets

FORMS = (successor_distance, hitting_distance)


def random_mdp(rng: np.random.Generator, states: int, actions: int, density: float) -> tuple[np.ndarray, np.ndarray]:
    """Dynamics [S, A, S] and a policy [S, A], with zeros; sparse ones fall apart."""

    def rows(*shape: int) -> np.ndarray:
        weight = rng.exponential(size=shape) * (rng.random(shape) < density)
        weight[..., 0] += weight.sum(-1) == 0
        return weight / weight.sum(-1, keepdims=True)

    return rows(states, actions, states), rows(states, actions)


def random_chains() -> list[tuple[np.ndarray, float]]:
    rng = np.random.default_rng(0)
    sizes = [(1, 1, 1.0), (2, 2, 1.0), (8, 3, 0.1), (12, 1, 0.12), (15, 2, 0.1), (20, 4, 1.0), (30, 2, 0.05)]
    return [
        (policy_matrix(*random_mdp(rng, *size)), discount)
        for size in sizes
        for discount in (0.05, 0.5, 0.9, 0.99, 0.999)
    ]


CHAINS = random_chains()


def test_chains_are_of_every_sort() -> None:
    """Some are in one piece, some are not, and some lead where no way leads back."""
    finite = [np.isfinite(shortest_path(chain)) for chain, _ in CHAINS]
    assert any(f.all() for f in finite)
    assert any((f & ~f.T).any() for f in finite)
    # Where a target can be reached but also be missed for ever, the time is infinite and the distance is not.
    assert any((np.isinf(hitting_time(chain)) & np.isfinite(successor_distance(chain, g))).any() for chain, g in CHAINS)


@pytest.mark.parametrize("form", FORMS)
def test_successor_distance_is_a_quasimetric(form) -> None:
    for chain, discount in CHAINS:
        d = form(chain, discount)
        assert d.dtype == np.float64
        assert not np.isnan(d).any()
        np.testing.assert_array_equal(np.diag(d), 0)
        others = d[~np.eye(len(d), dtype=bool)]
        assert (others >= -np.log(discount) * (1 - 1e-9)).all()  # no state is nearer than one step
        # d(x, z) <= d(x, y) + d(y, z), [x, y, z]
        assert (d[:, None, :] <= d[:, :, None] + d[None, :, :] + 1e-9).all()


def test_both_forms_agree() -> None:
    for chain, discount in CHAINS:
        np.testing.assert_allclose(
            successor_distance(chain, discount), hitting_distance(chain, discount), rtol=1e-9, atol=1e-12
        )


def test_occupancy_is_the_discounted_sum() -> None:
    for chain, discount in CHAINS:
        expected, power = np.zeros_like(chain), np.eye(len(chain))
        for k in range(int(np.log(1e-13) / np.log(discount)) + 1):
            expected += (1 - discount) * discount**k * power
            power = power @ chain
        p = occupancy(chain, discount)
        np.testing.assert_allclose(p, expected, rtol=0, atol=1e-12)
        np.testing.assert_allclose(p.sum(1), 1, rtol=1e-9)
        np.testing.assert_array_equal(p > 0, np.isfinite(shortest_path(chain)))


@pytest.mark.parametrize("discount", [0.3, 0.9, 0.99])
def test_where_ways_are_deterministic_distance_counts_steps(discount: float) -> None:
    states = 9
    cycle = np.roll(np.eye(states), 1, axis=1)
    steps = (np.arange(states)[None] - np.arange(states)[:, None]) % states
    line = np.diag(np.ones(states - 1), 1)
    line[-1, -1] = 1  # stays at its end
    ahead = np.where(np.arange(states)[None] >= np.arange(states)[:, None], steps, np.inf)
    for chain, expected in ((cycle, steps), (line, ahead)):
        np.testing.assert_array_equal(shortest_path(chain), expected)
        np.testing.assert_allclose(hitting_time(chain), expected, rtol=1e-12)
        for form in FORMS:
            np.testing.assert_allclose(form(chain, discount), expected * -np.log(discount), rtol=1e-12, atol=1e-13)


def test_deterministic_mdps_count_steps(rng) -> None:
    """The corollary on random MDPs: where every action has one outcome and every state one action."""
    for states in (2, 5, 17):
        dynamics = np.eye(states)[rng.integers(0, states, (states, 3))]
        policy = np.eye(3)[rng.integers(0, 3, states)]
        chain = policy_matrix(dynamics, policy)
        steps = shortest_path(chain)
        for form in FORMS:
            np.testing.assert_allclose(form(chain, 0.9), steps * -np.log(0.9), rtol=1e-9, atol=1e-12)


def test_distance_is_below_that_of_the_mean_time_and_above_that_of_the_shortest() -> None:
    """Jensen: -log E[gamma^H] <= E[H] log(1/gamma); and H is never below the shortest path."""
    for chain, discount in CHAINS:
        d = successor_distance(chain, discount)
        assert (d <= hitting_time(chain) * -np.log(discount) + 1e-9).all()
        assert (d >= shortest_path(chain) * -np.log(discount) - 1e-9).all()


def test_hitting_times_by_playing() -> None:
    """20,000 walks from every state: means of H and of gamma^H within five standard errors."""
    rng = np.random.default_rng(1)
    states, walks, target, discount = 5, 20_000, 2, 0.8
    chain = policy_matrix(*random_mdp(rng, states, 3, 0.7))
    assert np.isfinite(hitting_time(chain)).all()
    at = np.repeat(np.arange(states), walks)
    times, time = np.full(at.shape, -1), 0
    while (times < 0).any():
        times[(at == target) & (times < 0)] = time
        at = (rng.random(len(at))[:, None] > chain.cumsum(1)[at][:, :-1]).sum(1)
        time += 1
    times = times.reshape(states, walks)
    moments = discount**times
    error = times.std(1) / np.sqrt(walks)
    assert (np.abs(times.mean(1) - hitting_time(chain)[:, target]) <= 5 * error).all()
    error = moments.std(1) / np.sqrt(walks)
    exact = np.exp(-successor_distance(chain, discount)[:, target])
    assert (np.abs(moments.mean(1) - exact) <= 5 * error + 1e-12).all()


def test_hitting_times_that_are_known() -> None:
    # 0 goes to 1 or to 2, which keeps it; from 3 one always comes to 1, which goes back to 3.
    chain = np.array([[0, 0.5, 0.5, 0], [0, 0, 0, 1], [0, 0, 1, 0], [0, 1, 0, 0]])
    inf = np.inf
    expected = [[0, inf, inf, inf], [inf, 0, inf, 1], [inf, inf, 0, inf], [inf, 1, inf, 0]]
    np.testing.assert_allclose(hitting_time(chain), expected)
    # From 0 the target 1 is reached at step 1 or never: E[gamma^H] = gamma / 2.
    np.testing.assert_allclose(successor_distance(chain, 0.9)[0, 1], -np.log(0.45))
    # A symmetric walk on a line with walls that reflect: from one end to the other takes (n - 1) n steps.
    n = 7
    walk = 0.5 * (np.eye(n, k=1) + np.eye(n, k=-1))
    walk[0, 0] = walk[-1, -1] = 0.5
    np.testing.assert_allclose(hitting_time(walk)[0, -1], (n - 1) * n)


def test_hitting_times_by_one_system_are_those_by_many() -> None:
    """A state apart from all others changes no other's times, but asks for a system per target."""
    chains = [chain for chain, _ in CHAINS if np.isfinite(shortest_path(chain)).all()]
    chains.append(policy_matrix(transitions(Maze(MAZES["OneWay"][0]))[1]))
    for chain in chains:
        states = len(chain)
        apart = np.eye(states + 1)
        apart[:states, :states] = chain
        times = hitting_time(apart)
        np.testing.assert_allclose(times[:states, :states], hitting_time(chain), rtol=1e-9)
        assert np.isinf(times[states, :states]).all()
        assert np.isinf(times[:states, states]).all()


def test_shortest_paths_are_the_first_powers_that_get_there() -> None:
    dynamics, _ = random_mdp(np.random.default_rng(2), 25, 3, 0.04)
    maze = transitions(Maze(MAZES["OneWay"][0]))[1]
    for steps in (dynamics, maze, *(chain for chain, _ in CHAINS)):
        edges = (steps.any(1) if steps.ndim == 3 else steps > 0).astype(int)
        expected, there = np.full(edges.shape, np.inf), np.eye(len(edges), dtype=int)
        for time in range(len(edges)):
            expected[(there > 0) & np.isinf(expected)] = time
            there = (there @ edges > 0).astype(int)
        np.testing.assert_array_equal(shortest_path(steps), expected)


def test_policies() -> None:
    dynamics = np.eye(3)[np.array([[1, 2], [0, 1], [2, 0]])]
    np.testing.assert_array_equal(policy_matrix(dynamics), [[0, 0.5, 0.5], [0.5, 0.5, 0], [0.5, 0, 0.5]])
    policy = np.array([[1, 0], [0.25, 0.75], [0, 1]])
    np.testing.assert_array_equal(policy_matrix(dynamics, policy), [[0, 1, 0], [0.25, 0.75, 0], [1, 0, 0]])


@pytest.mark.parametrize("discount", [0.0, 1.0, -0.5, 1.5, float("nan")])
@pytest.mark.parametrize("form", [occupancy, *FORMS])
def test_a_discount_lies_between_0_and_1(form, discount: float) -> None:
    with pytest.raises(UserError, match="above 0 and below 1"):
        form(np.eye(2), discount)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: hitting_time(np.ones((2, 3))), r"square, \[S, S\], not \[2, 3\]"),
        (lambda: hitting_time(np.array([[1, 0], [0.5, 0.4]])), r"Row 1 of the transition matrix .* 0\.9"),
        (lambda: occupancy(np.array([[1.5, -0.5], [0, 1]]), 0.9), "Row 0"),
        (lambda: occupancy(np.full((2, 2), np.nan), 0.9), "Row 0"),
        (lambda: shortest_path(np.ones((2, 3))), "not"),
        (lambda: policy_matrix(np.eye(2)), r"\[S, A, S\]"),
        (lambda: policy_matrix(np.eye(2)[None].repeat(2, 0), np.ones((2, 3))), "2 states and 2 actions"),
        (lambda: policy_matrix(np.eye(2)[None].repeat(2, 0), np.ones((2, 2))), "Row 0 of the policy"),
    ],
)
def test_what_is_no_chain_is_refused(call, words: str) -> None:
    with pytest.raises(UserError, match=words):
        call()


# The paper's mazes, under uniformly random actions and a discount of 0.99 -------------------------------------------


@pytest.mark.parametrize(
    ("name", "free", "start", "far", "path", "farthest"),
    [
        ("Spiral", 127, (1, 1), (9, 7), 126, True),
        ("Interlocked", 351, (1, 1), (13, 5), 82, True),
        ("Hard", 148, (1, 1), (10, 10), 30, False),
        ("HardSmall", 120, (1, 1), (14, 1), 99, True),
    ],
)
def test_paths(name: str, free: int, start: tuple, far: tuple, path: int, farthest: bool) -> None:
    text, goal = MAZES[name]
    cells, dynamics = transitions(Maze(text, goal))
    assert len(cells) == free
    steps = shortest_path(dynamics)
    assert steps[cells.index(start), cells.index(far)] == path
    assert not farthest or steps[cells.index(start)].max() == path
    np.testing.assert_array_equal(steps, steps.T)


@pytest.fixture(scope="module")
def distances():
    """By name: a function from two cells to the exact distance, and the cells with all distances."""

    def of(name: str):
        cells, dynamics = transitions(Maze(MAZES[name][0]))
        d = successor_distance(policy_matrix(dynamics), 0.99)
        return cells, d, lambda x, y: d[cells.index(x), cells.index(y)]

    return {name: of(name) for name in ("Spiral", "Interlocked", "OneWay")}


def test_spiral(distances) -> None:
    cells, d, between = distances["Spiral"]
    np.testing.assert_allclose(between((1, 2), (1, 1)), 0.2007, atol=5e-5)
    np.testing.assert_allclose(between((9, 7), (1, 1)), 24.687, atol=5e-4)
    np.testing.assert_allclose(d[:, cells.index((1, 1))].mean(), 12.63, atol=5e-3)
    # By hand: (1, 1) is a dead end that is left by one action of four, so gamma^H has mean (g/4) / (1 - 3g/4).
    np.testing.assert_allclose(between((1, 1), (1, 2)), -np.log(0.2475 / (1 - 0.7425)), rtol=1e-12)
    np.testing.assert_allclose(between((1, 1), (1, 2)), 0.0396, atol=5e-5)


def test_interlocked(distances) -> None:
    cells, d, between = distances["Interlocked"]
    np.testing.assert_allclose(between((1, 2), (1, 1)), 0.2746, atol=5e-5)
    to_corner = d[:, cells.index((1, 1))]
    assert cells[to_corner.argmax()] == (13, 5)
    np.testing.assert_allclose(to_corner.max(), 19.655, atol=5e-4)
    np.testing.assert_allclose(between((1, 1), (13, 5)), 19.393, atol=5e-4)


def test_small_probabilities_keep_their_digits(distances) -> None:
    """Ten digits in the maze where they are down to 1e-11: against the first-step equations of one target, and added up
    along the corridor, where a way has to pass every cell between."""
    cells, dynamics = transitions(Maze(MAZES["Spiral"][0]))
    d = distances["Spiral"][1][:, cells.index((1, 1))]
    chain = policy_matrix(dynamics)
    assert cells.index((1, 1)) == 0
    moment = np.linalg.solve(np.eye(126) - 0.99 * chain[1:, 1:], 0.99 * chain[1:, 0])
    np.testing.assert_allclose(d[1:], -np.log(moment), rtol=1e-10)
    order = np.argsort(shortest_path(dynamics)[0])
    hops = distances["Spiral"][1][order[1:], order[:-1]]
    np.testing.assert_allclose(d[order[1:]], hops.cumsum(), rtol=1e-10)


def test_a_walk_that_hardly_ever_goes_right() -> None:
    """Probabilities down to 1e-26, against first-step equations in exact fractions."""
    states, right = 16, Fraction(1, 50)
    chain = [[Fraction(0)] * states for _ in range(states)]
    for x in range(states):
        chain[x][min(x + 1, states - 1)] += right
        chain[x][max(x - 1, 0)] += 1 - right
    found = successor_distance(np.array(chain, float), 0.99)
    # From x to x + 1: m_x = g (r + (1 - r) m_{x-1} m_x), since who goes left must first come back.
    discount, moments, before = Fraction(99, 100), [], Fraction(1)
    for _ in range(states - 1):
        before = discount * right / (1 - discount * (1 - right) * before)
        moments.append(before)
    np.testing.assert_allclose(np.diag(found, 1), [-math.log(m) for m in moments], rtol=1e-12)
    np.testing.assert_allclose(found[0, -1], -sum(math.log(m) for m in moments), rtol=1e-12)


def test_one_way_is_asymmetric(distances) -> None:
    """The next room of the ring is nearer than the one before, in steps and in distance."""
    cells, d, between = distances["OneWay"]
    _, dynamics = transitions(Maze(MAZES["OneWay"][0]))
    steps = shortest_path(dynamics)
    assert np.isfinite(d).all()
    rooms = [(1, 1), (1, 11), (9, 11), (9, 1)]  # clockwise
    for here, there in zip(rooms, rooms[1:] + rooms[:1], strict=True):
        x, y = cells.index(here), cells.index(there)
        assert steps[x, y] in (8, 10)
        assert steps[x, y] + steps[y, x] == 36
        assert between(here, there) < 0.5 * between(there, here)
    assert np.abs(d - d.T).max() > 1


def test_mazes_take_the_minigrid_presets() -> None:
    experiment = presets.choose("Maze-Spiral-v0", "etd")
    assert experiment.env.id == "Maze-Spiral-v0"
    assert experiment.ppo == presets.find("minigrid-etd").ppo
