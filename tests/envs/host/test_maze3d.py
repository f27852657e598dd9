"""Our mazes against MiniWorld's: the same mazes, motion, rewards, ends and pictures.

``ETD_PARITY_STEPS`` and ``ETD_PARITY_POSES`` ask for more than the default, and ``ETD_PARITY_PICTURE`` names a file for
some of the pictures, MiniWorld's above ours.
"""

from __future__ import annotations

import gc
import math
import os
from collections import Counter
from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from etd.envs import families, host
from etd.envs.maze3d import Maze3D, env, layout, view
from etd.envs.maze3d.env import FORWARD, LEFT, RIGHT, Maze3DState
from etd.envs.maze3d.layout import Carved, Layout

if why := families.find("MiniWorld-MazeS3-v0").absence():
    pytest.skip(why, allow_module_level=True)

pytestmark = pytest.mark.suites
STEPS = int(os.environ.get("ETD_PARITY_STEPS", "6000"))
POSES = int(os.environ.get("ETD_PARITY_POSES", "120"))


@pytest.fixture(scope="module")
def mazes():
    gc.collect()  # what other tests drew with lets go of OpenGL now, and not in the middle of a maze
    return {size: host.make(f"MiniWorld-MazeS{size}-v0") for size in (3, 4, 5)}


@pytest.fixture
def blind(mazes, monkeypatch):
    """The same, drawing nothing, which takes most of the time."""
    for maze in mazes.values():
        monkeypatch.setattr(maze, "render_obs", lambda: None)
    return mazes


def translate(maze) -> Maze3DState:
    """MiniWorld's state in our terms; an AssertionError if it is not one of ours."""
    size = maze.num_rows
    number = {room: index for index, room in enumerate(maze.rooms[: size * size])}
    east, south = np.zeros((2, size, size), bool)
    for room, others in maze.joined.items():
        place = divmod(number[room], size)
        for other in others:
            east[place] |= number[other] == number[room] + 1
            south[place] |= number[other] == number[room] + size

    def twentieths(pos: np.ndarray) -> np.ndarray:
        exact = 20 * pos[[0, 2]]
        np.testing.assert_allclose(exact, np.rint(exact), atol=20 * 1e-4)
        return np.rint(exact).astype(np.int32)

    turns = maze.agent.dir / (math.pi / 2)
    assert turns == pytest.approx(round(turns), abs=1e-4)
    return Maze3DState(
        Layout(east, south),
        twentieths(maze.agent.pos),
        np.int32(round(turns) % 4),
        twentieths(maze.box.pos),
        np.float32(maze.box.dir),
        np.int32(maze.step_count),
    )


# Motion ----------------------------------------------------------------------------------------------------------


def at_random(maze, rng: np.random.Generator) -> Iterator[int]:
    while True:
        yield rng.choice(3, p=[0.2, 0.2, 0.6])


def along_walls(maze, rng: np.random.Generator) -> Iterator[int]:
    """A hand on the wall: to that side as early as possible, which cuts every corner and touches every pillar."""
    hand, other = rng.permutation([LEFT, RIGHT])
    before = None
    while before is not maze.agent.pos:
        before = maze.agent.pos
        yield FORWARD
    yield other
    while True:
        before = maze.agent.pos
        yield hand
        yield FORWARD
        while maze.agent.pos is before:  # MiniWorld leaves it alone if it is stopped
            yield other
            yield FORWARD


def to_the_box(maze, rng: np.random.Generator) -> Iterator[int]:
    """A way of rooms from the agent to the box, straight at each centre, then cutting corners by chance."""
    rooms, pitch = maze.rooms[: maze.num_rows**2], 3.25
    agent, box = (
        rooms[round((e.pos[2] - 1.5) / pitch) * maze.num_rows + round((e.pos[0] - 1.5) / pitch)]
        for e in (maze.agent, maze.box)
    )
    before, queue = {box: box}, [box]
    for room in queue:
        new = [other for other in maze.joined[room] if other not in before]
        before.update(dict.fromkeys(new, room))
        queue += new
    while True:
        agent = before[agent]
        goal = np.array([agent.mid_x, 0, agent.mid_z])
        for axis in rng.permutation([0, 2]):
            ahead = np.eye(3)[axis]
            while abs(gap := (goal - maze.agent.pos)[axis]) > rng.choice([0.31, 0.31, 0.9]):
                if rng.random() < 0.05:
                    yield from (LEFT, RIGHT)
                while maze.agent.dir_vec @ ahead * np.sign(gap) < 0.5:
                    yield LEFT if maze.agent.right_vec @ ahead * np.sign(gap) < 0 else RIGHT
                stuck = maze.agent.pos
                yield FORWARD
                if (maze.agent.pos == stuck).all():
                    break


@pytest.mark.parametrize("policy", [at_random, along_walls, to_the_box])
def test_motion_rewards_and_ends(blind, policy) -> None:
    """Every step on its own: both start at the same place, and arrive at the same place, reward and end. Where the
    agent would touch a wall without overlapping it MiniWorld's rounding decides, so those steps are left out."""
    rng = np.random.default_rng(0)
    for size, maze in blind.items():
        befores, actions, touching, afters, ends = [], [], [], [], []
        seed = 0
        while len(actions) < STEPS // 9:
            maze.reset(seed=seed)
            seed += 1
            for action in policy(maze, rng):
                befores.append(translate(maze))
                touching.append(action == FORWARD and _touches(maze))
                _, reward, terminated, truncated, _ = maze.step(int(action))
                actions.append(action)
                afters.append(translate(maze))
                ends.append((reward, terminated, truncated))
                if terminated or truncated:
                    break
        befores, afters = (jax.tree.map(lambda *leaves: np.stack(leaves), *states) for states in (befores, afters))
        actions = np.array(actions, np.int32)
        states, steps = jax.jit(jax.vmap(partial(_outcome, Maze3D(size))))(befores, actions)
        same = ~np.array(touching)
        assert same.mean() > 0.9
        for name in ("facing", "time"):
            np.testing.assert_array_equal(getattr(states, name), getattr(afters, name), err_msg=name)
        np.testing.assert_array_equal(states.place[same], afters.place[same])
        rewards, terminated, truncated = (np.array(column) for column in zip(*ends, strict=True))
        np.testing.assert_allclose(steps.reward[same], rewards[same], atol=1e-6)
        np.testing.assert_array_equal(steps.terminated[same], terminated[same])
        np.testing.assert_array_equal(steps.truncated, truncated)
        stopped = (afters.place == befores.place).all(1)[~same].mean() if (~same).any() else math.nan
        print(
            f"MazeS{size}, {policy.__name__}: {len(actions)} steps, {seed} episodes, {int(terminated.sum())} at the "
            f"box, {int((~same).sum())} touching a wall, of which MiniWorld stops {stopped:.0%}"
        )


def _outcome(maze: Maze3D, state: Maze3DState, action):
    state, step = maze.step(state, action)
    return state, step._replace(next_obs=jnp.zeros(()))  # the view is not computed


def _touches(maze) -> bool:
    """Whether one step ahead the agent would be exactly its radius away from the nearest wall."""
    ends, there = maze.wall_segs, maze.agent.pos + 0.6 * maze.agent.dir_vec
    along = ends[:, 1] - ends[:, 0]
    part = ((there - ends[:, 0]) * along).sum(1) / (along**2).sum(1)
    nearest = ends[:, 0] + np.clip(part, 0, 1)[:, None] * along
    return abs(np.linalg.norm(nearest - there, axis=1).min() - 0.4) < 1e-6


# Mazes -----------------------------------------------------------------------------------------------------------


def test_mazes_are_as_frequent_and_have_the_same_ends(blind) -> None:
    maze, count = blind[3], max(600, STEPS // 30)
    carve = jax.jit(jax.vmap(lambda key: layout.carve(key, 3)))
    ours = jax.tree.map(np.asarray, carve(jax.random.split(jax.random.key(0), 20 * count)))

    @jax.jit
    def ends(walls, order):
        depth = layout.distances(walls, order == 1)
        agent, box = layout.ends(Carved(walls, order, depth))
        return env.centre(agent), env.centre(box), layout.distances(walls, box).max()

    theirs, lengths = Counter(), Counter()
    for seed in range(count):
        maze.reset(seed=seed)
        state = translate(maze)
        order = np.zeros(9, np.int32)
        for number, room in enumerate(maze.joined, 1):  # a room is joined when it is visited
            order[maze.rooms.index(room)] = number
        agent, box, length = ends(state.layout, order.reshape(3, 3))
        np.testing.assert_array_equal(agent, state.place)
        np.testing.assert_array_equal(box, state.box)
        theirs[_code(*state.layout)] += 1
        lengths[int(length)] += 1
    mine = Counter(_code(east, south) for east, south in zip(*ours.layout, strict=True))
    assert mine.keys() == theirs.keys()
    _equally_frequent(theirs, mine)
    far = jax.jit(jax.vmap(lambda carved: layout.distances(carved.layout, layout.ends(carved)[1]).max()))(ours)
    _equally_frequent(lengths, Counter(np.asarray(far).tolist()))
    print(
        f"{count} mazes of MiniWorld, {20 * count} of ours: {len(mine)} layouts, ways {dict(sorted(lengths.items()))}"
    )


def _code(east: np.ndarray, south: np.ndarray) -> int:
    return int(np.concatenate([east.ravel(), south.ravel()]) @ (1 << np.arange(2 * east.size)))


def _equally_frequent(one: Counter, other: Counter) -> None:
    """Two samples of one distribution, by a chi-squared test that fails one in a thousand times."""
    from scipy.stats import chi2_contingency

    common = [name for name in other if other[name] >= 5 * other.total() / one.total()]  # at least five expected
    table = np.array([[sample[name] for name in common] for sample in (one, other)])
    rest = np.array([[one.total()], [other.total()]]) - table.sum(1, keepdims=True)
    table = np.hstack([table, rest]) if rest.all() else table
    assert chi2_contingency(table).pvalue > 1e-3


# Pictures --------------------------------------------------------------------------------------------------------


def test_pictures(mazes) -> None:
    """At every pixel MiniWorld's depth is ours within one pixel, so all outlines are; so is the box's."""
    rng = np.random.default_rng(0)
    differences, pairs = [], []
    for size, maze in mazes.items():
        look = jax.jit(lambda state, size=size: (Maze3D(size).observe(state), *_depths(state)))
        collides = jax.jit(env.collides)
        for pose in range(POSES // 3):
            if pose % 10 == 0:
                maze.reset(seed=pose)
                walls, start = translate(maze).layout, translate(maze).place
            while True:
                place = start + 12 * rng.integers(-5 * size, 5 * size + 1, 2)
                room = (place - 30) / 65
                free = (room > -0.5).all() and (room < size - 0.5).all() and not collides(walls, place)
                away = np.linalg.norm(place / 20 - maze.box.pos[[0, 2]])
                if free and away > 1 and (pose % 3 or away < 8):
                    break
            maze.agent.pos = np.array([place[0] / 20, 0, place[1] / 20])
            maze.agent.dir = math.pi / 2 * rng.integers(4)
            theirs, depth = maze.render_obs(), maze.render_depth()[..., 0]
            ours, our_depth, box = (np.asarray(array) for array in look(translate(maze)))
            low, high = (_around(our_depth, pick) for pick in (np.min, np.max))
            # The depth buffer has 16 bits, and a slanting wall goes on for a pixel beyond the last one we see of it.
            error = 0.02 + 2 * depth**2 / 0.04 / 65535 + 0.04 * depth
            within = (low - error <= depth) & (depth <= high + error)
            assert within[1:-1, 1:-1].all(), (size, pose, np.argwhere(~within))  # the border has no neighbours outside
            red = (theirs[..., 0] > 90) & (theirs[..., 1] < 10)
            assert (red <= _around(box, np.max)).all()
            assert (box <= _around((theirs[..., 0] > 2 * theirs[..., 1].astype(int)), np.max)).all()
            differences.append(np.abs(theirs.astype(float) - ours).mean())
            if depth.std() > 0.5 or red.any():  # of walls alone there is little to see
                pairs.append(np.vstack([theirs, ours]))
    print(f"{POSES} pictures: mean absolute difference {np.mean(differences):.1f} of 255, most {max(differences):.1f}")
    if "ETD_PARITY_PICTURE" in os.environ:
        shown = [pairs[k] for k in np.linspace(0, len(pairs) - 1, 16).astype(int)]
        sheet = np.vstack([np.hstack(shown[k : k + 8]) for k in (0, 8)])
        Image.fromarray(sheet.repeat(2, 0).repeat(2, 1)).save(os.environ["ETD_PARITY_PICTURE"], optimize=True)
    assert np.mean(differences) < 8


def _depths(state: Maze3DState):
    """[64, 64] how far away each pixel's centre is, and whether it shows the box, from what the columns hold."""
    slope = (np.arange(64) + 0.5) / 32 * view.SLOPE - view.SLOPE
    forward = jnp.stack(env.ahead(state.facing)).astype(jnp.float32)
    ray = forward[:, None] + slope * jnp.stack([-forward[1], forward[0]])[:, None]
    wall = view._walls(state.layout, state.place / 20, ray, 2 * view.SLOPE / 64)
    columns = view._columns(wall, (state.box - state.place) / 20, state.angle, ray, 64)
    row, down = np.arange(64)[:, None] + 0.5, slope[:, None]
    ground = jnp.where(down > 0, view.EYE / down, (view.EYE - view.HEIGHT) / down)
    depth = jnp.where((columns.top <= row) & (row < columns.foot), wall.depth, ground)
    top, front = (
        (columns.box_top <= row) & (row < columns.box_edge),
        (columns.box_edge <= row) & (row < columns.box_foot),
    )
    near = view.EYE / ((columns.box_foot / 32 - 1) * view.SLOPE)
    return jnp.where(front, near, jnp.where(top, (view.EYE - view.BOX) / down, depth)), top | front


def _around(pixels: np.ndarray, pick) -> np.ndarray:
    padded = np.pad(pixels, 1, mode="edge")
    return pick([padded[i : i + 64, j : j + 64] for i in range(3) for j in range(3)], axis=0)
