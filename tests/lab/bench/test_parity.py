"""Farama's MiniGrid and ours, step by step: the same level and actions give the same everything."""

from __future__ import annotations

from functools import cache

import jax
import numpy as np
import pytest

from etd.envs.minigrid import IDS, make
from etd.envs.minigrid.view import visible
from etd.envs.minigrid.world import BALL, BOX, DOOR, EMPTY, KEY, LOCKED, OPEN, kind_of, state_of

pytest.importorskip("minigrid")
from etd.lab.bench import parity

STEPS = -(-20_000 // len(IDS))
"""At least 20,000 over all levels."""


@cache
def recorded(name: str) -> list[parity.Segment]:
    return parity.record(name, STEPS, seed=0)[0]


@pytest.mark.parametrize("name", IDS)
def test_steps_are_equal(name: str) -> None:
    mismatches, first = parity.compare(make(name), recorded(name))
    assert mismatches == 0, first


def test_recorded_play_meets_everything_that_can_happen() -> None:
    """The comparison above proves little unless the play it compares is rich."""
    met: set[str] = set()
    for segment in (segment for name in IDS for segment in recorded(name)):
        met |= {"success"} if segment.reward.max() > 0 else set()
        met |= {"failure"} if (segment.terminated & (segment.reward == 0)).any() else set()
        met |= {"time-out"} if segment.truncated.any() else set()
        # What is carried shows in the middle of the nearest row.
        hands = segment.obs[: segment.length + 1, 3, 6, 0]
        met |= {f"carrying {kind}" for kind in hands}
        met |= {"dropping"} if ((hands[:-1] != EMPTY) & (hands[1:] == EMPTY)).any() else set()
        before, after = segment.start.grid, segment.end.grid
        unlocked = (kind_of(before) == DOOR) & (state_of(before) == LOCKED) & (state_of(after) == OPEN)
        met |= {"unlocking"} if unlocked.any() else set()
        met |= {f"box to {kind_of(code)}" for code in after[(kind_of(before) == BOX) & (before != after)]}
    assert {"success", "failure", "time-out", "dropping", "unlocking"} <= met
    assert {f"carrying {kind}" for kind in (KEY, BALL, BOX)} <= met
    assert {f"box to {kind}" for kind in (EMPTY, KEY)} <= met


@pytest.mark.parametrize(("view_size", "see_through_walls"), [(3, False), (5, True), (11, False)])
def test_other_views_are_equal(view_size: int, see_through_walls: bool) -> None:
    name = "MiniGrid-DoorKey-8x8-v0"
    options = {"agent_view_size": view_size, "see_through_walls": see_through_walls}
    segments, _ = parity.record(name, 600, seed=1, **options)
    mismatches, first = parity.compare(make(name, view_size, see_through_walls), segments)
    assert mismatches == 0, first


def test_sight_is_equal_in_random_clutter() -> None:
    """Levels hold tidy rooms; sight must agree in any clutter, so its rows are compared on random ones."""
    from minigrid.core.grid import Grid
    from minigrid.core.world_object import Wall

    rng = np.random.default_rng(0)
    for width in (3, 7, 11):
        density = rng.uniform(0.05, 0.6, (120, 1, 1))
        clear = rng.random((120, width, width)) > density
        ours = np.asarray(jax.jit(jax.vmap(visible))(clear))
        for k in range(len(clear)):
            grid = Grid(width, width)
            for i, j in np.argwhere(~clear[k]):
                grid.set(i, j, Wall())
            np.testing.assert_array_equal(ours[k], grid.process_vis((width // 2, width - 1)))


def test_a_wrong_step_is_reported() -> None:
    """The comparison itself: one altered action, reward and observation are each found."""
    env, segments = make("MiniGrid-DoorKey-5x5-v0"), recorded("MiniGrid-DoorKey-5x5-v0")
    good = segments[0]
    for field, value in (("reward", good.reward + 1), ("obs", 10 - good.obs), ("truncated", ~good.truncated)):
        mismatches, first = parity.compare(env, [good._replace(**{field: value})])
        assert mismatches >= good.length
        assert env.name in first


@pytest.mark.parametrize("name", ["MiniGrid-DoorKey-6x6-v0", "MiniGrid-BlockedUnlockPickup-v0"])
def test_pictures_are_equal(name: str) -> None:
    """Pixel for pixel, along a few steps; the second level is not square and holds ball, box, key and door."""
    theirs, ours = parity.farama(name), make(name)
    theirs.reset(seed=3)
    for action in (0, 2, 1):
        theirs.step(action)
        state = parity.translate(theirs, max(theirs.width, theirs.height))
        np.testing.assert_array_equal(ours.render(state), theirs.get_frame())


@pytest.mark.slow
def test_a_million_steps_are_equal() -> None:
    report = parity.run(1_000_000, seed=7)
    assert report.steps >= 1_000_000
    assert report.mismatches == 0, report.first
