"""Our level generators against Farama's: the same features of a level must be equally frequent.

Every level is described by labels (where the agent is, which colour the first key has, how many doors there are, ...).
For each label a two-sample chi-square test compares its frequencies in Farama's levels and in ours. Seeds are fixed,
so the tests are deterministic. The threshold allows the smallest of all p-values of a level to be 1e-3 / labels
(Bonferroni): a correct generator fails one seed in a thousand, and the seeds here are not among those.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chi2_contingency
from tests.conftest import QUICK

from etd.envs.minigrid import IDS, make, multiroom
from etd.envs.minigrid.world import (
    BALL,
    BOX,
    CLOSED,
    DOOR,
    EMPTY,
    GOAL_KIND,
    INSIDE_SHIFT,
    KEY,
    LOCKED,
    STEP_X,
    STEP_Y,
    WALL_KIND,
    World,
    colour_of,
    kind_of,
    state_of,
)

pytest.importorskip("minigrid")
from minigrid.envs.multiroom import MultiRoom as FaramaRoom

from etd.lab.bench import parity

SIGNIFICANCE = 1e-3
SAMPLE = [
    "MiniGrid-Empty-Random-6x6-v0",
    "MiniGrid-DoorKey-8x8-v0",
    "MiniGrid-MultiRoom-N6-v0",
    "MiniGrid-KeyCorridorS3R3-v0",
    "MiniGrid-ObstructedMaze-1Dlhb-v0",
    "MiniGrid-ObstructedMaze-2Dlhb-v0",
    "MiniGrid-ObstructedMaze-Full-v1",
    "MiniGrid-BlockedUnlockPickup-v0",
    "MiniGrid-Fetch-8x8-N3-v0",
    "MiniGrid-RedBlueDoors-6x6-v0",
    "MiniGrid-LockedRoom-v0",
    "MiniGrid-FourRooms-v0",
]
THINGS = {
    "closed door": (DOOR, CLOSED),
    "locked door": (DOOR, LOCKED),
    "key": (KEY, 0),
    "ball": (BALL, 0),
    "box": (BOX, 0),
    "goal": (GOAL_KIND, 0),
}


def labels(world: World) -> dict[str, tuple[int, ...]]:
    """The features of one level whose frequencies are compared."""
    grid, x, y, direction = np.asarray(world.grid), int(world.x), int(world.y), int(world.direction)
    ahead = int(grid[y + STEP_Y[direction], x + STEP_X[direction]])
    walls = np.argwhere(grid == grid[0, 0]) if kind_of(int(grid[0, 0])) == WALL_KIND else np.argwhere(grid != EMPTY)
    found = {
        "agent": (x, y),
        "direction": (direction,),
        "ahead": (direction, kind_of(ahead), state_of(ahead)),
        "target": (int(world.target),),
        "walls": (len(walls) // 4,),
        "extent": (*walls.min(axis=0), *walls.max(axis=0)),
    }
    colours: list[int] = []
    for name, (kind, state) in THINGS.items():
        places = np.argwhere((kind_of(grid) == kind) & (state_of(grid) == state))
        found[f"{name}s"] = (len(places),)
        if len(places) == 0:
            continue
        codes = [int(grid[tuple(place)]) for place in places]
        found[f"first {name}"], found[f"last {name}"] = tuple(places[0]), tuple(places[-1])
        found[f"{name} colour"] = (colour_of(codes[0]),)
        found[f"{name} inside"] = (codes[-1] >> INSIDE_SHIFT,)
        found[f"{name} distance"] = (abs(int(places[0][0]) - y) + abs(int(places[0][1]) - x),)
        colours += [colour_of(code) for code in codes]
    if "last locked door" in found and "first key" in found:
        found["row of lock and key"] = (found["last locked door"][0], found["first key"][0])
    open_cells = kind_of(grid) != WALL_KIND
    for line, cells in (("row", open_cells[len(grid) // 2]), ("column", open_cells[:, len(grid) // 2])):
        gaps = np.flatnonzero(cells)
        found[f"first gap of the middle {line}"] = tuple(gaps[:1])
        found[f"last gap of the middle {line}"] = tuple(gaps[-1:])
    # Which of the first things share a colour, for instance key and door.
    found["same colours"] = tuple(colours[:4].index(colour) for colour in colours[:4])
    return found


def smallest_p(theirs: Iterable[World], ours: Iterable[World]) -> tuple[float, str, int]:
    """The smallest p-value over labels, the label it belongs to, and how many labels were compared."""
    counts: dict[str, list[Counter[tuple[int, ...]]]] = {}
    for which, worlds in enumerate((theirs, ours)):
        for world in worlds:
            for name, label in labels(world).items():
                counts.setdefault(name, [Counter(), Counter()])[which][label] += 1
    results = [(p_value(*pair), name) for name, pair in counts.items()]
    return *min(results), len(results)


def p_value(theirs: Counter[tuple[int, ...]], ours: Counter[tuple[int, ...]]) -> float:
    """Of a chi-square test of homogeneity; labels expected fewer than five times in either sample are pooled."""
    totals = theirs.total(), ours.total()
    table: dict[tuple[int, ...] | None, list[int]] = {}
    for label in theirs | ours:
        expected = (theirs[label] + ours[label]) * min(totals) / sum(totals)
        row = table.setdefault(label if expected >= 5 else None, [0, 0])
        row[0] += theirs[label]
        row[1] += ours[label]
    rows = np.array(list(table.values()))
    if len(rows) < 2:
        # One label for all: equal unless only one side has it.
        return 1.0 if min(totals) > 0 else 0.0
    return float(chi2_contingency(rows).pvalue)


def farama_levels(name: str, count: int) -> list[World]:
    env = parity.farama(name)
    size = max(env.width, env.height)
    worlds = []
    for seed in range(count):
        env.reset(seed=seed)
        worlds.append(parity.translate(env, size))
    return worlds


def our_levels(name: str, count: int, seed: int = 0) -> list[World]:
    reset = jax.jit(jax.vmap(make(name).level.generate), compiler_options=QUICK)
    worlds = jax.device_get(reset(jax.random.split(jax.random.key(seed), count)))
    return [jax.tree.map(lambda leaf, b=b: leaf[b], worlds) for b in range(count)]


def check(name: str, theirs: int, ours: int) -> None:
    p, label, compared = smallest_p(farama_levels(name, theirs), our_levels(name, ours))
    assert p * compared > SIGNIFICANCE, f"{name}: {label!r} has p = {p:.1e}"


@pytest.mark.parametrize("name", SAMPLE)
def test_levels_are_as_frequent_as_faramas(name: str) -> None:
    check(name, 400, 1500)


@pytest.mark.slow
@pytest.mark.parametrize("name", IDS)
def test_every_level_is_as_frequent_as_faramas(name: str) -> None:
    check(name, 4000, 12000)


def test_the_comparison_finds_a_wrong_generator() -> None:
    """DoorKey levels of which every third has its agent look right."""
    theirs, ours = farama_levels("MiniGrid-DoorKey-5x5-v0", 400), our_levels("MiniGrid-DoorKey-5x5-v0", 400)
    p, _, compared = smallest_p(theirs, ours)
    assert p * compared > SIGNIFICANCE
    turned = [world._replace(direction=np.int32(0)) if b % 3 == 0 else world for b, world in enumerate(ours)]
    p, _, compared = smallest_p(theirs, turned)
    assert p * compared < SIGNIFICANCE


def test_the_same_key_gives_the_same_level_and_another_key_another() -> None:
    one, same, other = (our_levels("MiniGrid-DoorKey-8x8-v0", 64, seed) for seed in (5, 5, 6))
    equal = [[np.array_equal(a.grid, b.grid) for a, b in zip(one, two, strict=True)] for two in (same, other)]
    assert all(equal[0])
    assert np.mean(equal[1]) < 0.1


def test_rooms_fit_where_faramas_do(rng: np.random.Generator, quick) -> None:
    """Of eight tries the first that Farama's own code would place beside the rooms so far; if none, no room is left."""
    farama, script = parity.farama("MiniGrid-MultiRoom-N6-v0"), []
    farama._rand_int = lambda low, high: script.pop(0)
    count, placed = 400, 3
    chains = np.concatenate([rng.integers(0, 20, (2, count, placed)), rng.integers(4, 8, (2, count, placed))])
    tries = np.concatenate(
        [rng.integers(-1, 22, (2, count, multiroom.TRIES)), rng.integers(4, 8, (2, count, multiroom.TRIES))]
    )
    first = np.full(count, -1)
    for n in range(count):
        rooms = [FaramaRoom((x, y), (width, height), None, None) for x, y, width, height in chains[:, n].T]
        for k, (x, y, width, height) in enumerate(tries[:, n].T):
            script[:] = [width, height, y]
            if farama._placeRoom(1, rooms[:], 4, 8, entryDoorWall=2, entryDoorPos=(x, 0)):
                first[n] = k
                break
    assert set(first) == set(range(-1, multiroom.TRIES))  # every try is the first somewhere

    def ours(rooms: jax.Array, tries: jax.Array) -> multiroom.Chain:
        none, zero = jnp.zeros(placed + 1, int), jnp.zeros((), int)
        chain = multiroom.Chain(*jnp.pad(rooms, ((0, 0), (0, 1))), none, none, zero, zero + placed, zero)
        return multiroom._append(chain, jnp.concatenate([tries, tries[:2]]), jnp.zeros(multiroom.TRIES, int))

    found = jax.device_get(quick(jax.vmap(ours, 1))(chains, tries))
    np.testing.assert_array_equal(found.placed, np.where(first < 0, 0, placed + 1))
    fits = first >= 0
    room = np.stack(found[:4])[:, fits, placed]
    np.testing.assert_array_equal(room, tries[:, fits, first[fits]])


def test_a_room_is_tried_for_as_often_as_by_farama() -> None:
    farama, calls = parity.farama("MiniGrid-MultiRoom-N6-v0"), []
    farama._rand_int = lambda low, high: 4 if len(calls) == 1 else 30  # the first room fits, no other does
    place = farama._placeRoom
    farama._placeRoom = lambda *args, **fields: (calls.append(1), place(*args, **fields))[1]
    farama._rand_elem = lambda walls: walls[0]
    farama._placeRoom(2, [], 4, 8, entryDoorWall=2, entryDoorPos=(5, 5))
    assert len(calls) - 1 == multiroom.TRIES
