"""The first-person mazes, by the rules in plain Python; against MiniWorld itself in host/test_maze3d.py."""

from __future__ import annotations

import math
from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from etd.core.errors import UserError
from etd.envs import Task, ids
from etd.envs.maze3d import IDS, Maze3D, env, layout, make, view
from etd.envs.maze3d.env import FORWARD, LEFT, RIGHT, Maze3DState
from etd.training import presets

MAZE = Maze3D(3)
POSES = 40
AHEAD = ((1, 0), (0, -1), (-1, 0), (0, 1))


@pytest.fixture(scope="module")
def reset(quick):
    return quick(jax.vmap(MAZE.reset))


@pytest.fixture(scope="module")
def starts(reset):
    """Eight first states, and what is seen in them."""
    return jax.tree.map(np.asarray, reset(jax.random.split(jax.random.key(3), 8)))


@pytest.fixture(scope="module")
def step(quick):
    return quick(MAZE.step)


@pytest.fixture(scope="module")
def look(quick):
    """Views [N, 64, 64, 3] and depths [N, 64]; always compiled for the same number of states."""
    compiled = quick(jax.vmap(lambda state: (MAZE.observe(state), _depth(state))))

    def look(states: Maze3DState):
        count = len(states.time)
        padded = jax.tree.map(lambda leaf: np.concatenate([leaf, np.repeat(leaf[:1], POSES - count, 0)]), states)
        return jax.tree.map(lambda leaf: np.asarray(leaf)[:count], compiled(padded))

    return look


def one(states: Maze3DState, index: int) -> Maze3DState:
    return jax.tree.map(lambda leaf: leaf[index], states)


def solids(state: Maze3DState) -> np.ndarray:
    """[K, 4] every block of wall: its lower and upper x and z in twentieths of a metre."""
    size = len(state.layout.east)
    blocks = [(65 * i - 5, 65 * i, 65 * j - 5, 65 * j) for i in range(size + 1) for j in range(size + 1)]  # pillars
    for i in range(-1, size):
        for j in range(size):
            if i < 0 or not state.layout.east[j, i]:
                blocks.append((65 * i + 60, 65 * i + 65, 65 * j, 65 * j + 60))
            if i < 0 or not state.layout.south[i, j]:
                blocks.append((65 * j, 65 * j + 60, 65 * i + 60, 65 * i + 65))
    return np.array(blocks)


def clearance(state: Maze3DState, places: np.ndarray) -> np.ndarray:
    """[P] how far [P, 2] places are from the nearest wall."""
    low_x, high_x, low_z, high_z = solids(state).T
    x, z = places[:, :1], places[:, 1:]
    return np.hypot(
        np.maximum(np.maximum(low_x - x, x - high_x), 0), np.maximum(np.maximum(low_z - z, z - high_z), 0)
    ).min(1)


def plan(state: Maze3DState) -> list[int]:
    """A quickest way to the box, found by trying every action everywhere."""
    start = (int(state.place[0]), int(state.place[1]), int(state.facing))
    queue, before = deque([start]), {start: None}
    while queue:
        x, z, facing = now = queue.popleft()
        if math.dist((x, z), state.box) < 20 * 1.6257:
            actions = []
            while before[now] is not None:
                now, action = before[now]
                actions.append(action)
            return actions[::-1]
        there = np.array([(x + 12 * AHEAD[facing][0], z + 12 * AHEAD[facing][1])])
        moved = there[0] if clearance(state, there)[0] > 8 else (x, z)
        for action, new in (
            (LEFT, (x, z, (facing + 1) % 4)),
            (RIGHT, (x, z, (facing - 1) % 4)),
            (FORWARD, (int(moved[0]), int(moved[1]), facing)),
        ):
            if new not in before:
                before[new] = ((x, z, facing), action)
                queue.append(new)
    raise AssertionError("no way to the box")


# Mazes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 5])
def test_every_maze_is_a_tree_with_agent_and_box_at_the_ends_of_a_longest_way(quick, size):
    carve = quick(jax.vmap(lambda key: (lambda c: (c, *layout.ends(c)))(layout.carve(key, size))))
    (walls, order, depth), agents, boxes = jax.tree.map(np.asarray, carve(jax.random.split(jax.random.key(0), 40)))
    assert len({(e.tobytes(), s.tobytes()) for e, s in zip(*walls, strict=True)}) > (1 if size == 2 else 35)
    for east, south, number, deep, agent, box in zip(*walls, order, depth, agents, boxes, strict=True):
        assert not east[:, -1].any()
        assert not south[-1].any()
        assert east.sum() + south.sum() == size**2 - 1
        index = np.arange(size**2).reshape(size, size)
        far = np.where(np.eye(size**2), 0, np.inf)
        for a, b in [
            *zip(index[east], index[east] + 1, strict=True),
            *zip(index[south], index[south] + size, strict=True),
        ]:
            far[a, b] = far[b, a] = 1
        for via in range(size**2):
            far = np.minimum(far, far[:, via, None] + far[via])
        np.testing.assert_array_equal(deep.ravel(), far[0])
        assert sorted(number.ravel()) == list(range(1, size**2 + 1))
        assert agent.sum() == box.sum() == 1
        assert far[agent.argmax(), box.argmax()] == far.max()


def test_an_episode_starts_in_the_middle_of_a_room_and_its_key_decides_all_of_it(starts, reset, look):
    states, seen = starts
    assert (states.facing == 0).all()
    assert (states.time == 0).all()
    assert ((states.place - 30) % 65 == 0).all()
    assert ((states.box - 30) % 65 == 0).all()
    assert len(set(states.angle.tolist())) == 8
    again, seen_again = reset(jax.random.split(jax.random.key(3), 8))
    jax.tree.map(np.testing.assert_array_equal, states, again)
    np.testing.assert_array_equal(seen, seen_again)
    np.testing.assert_array_equal(seen, look(states)[0])


# Motion ----------------------------------------------------------------------------------------------------------


def test_the_agent_is_stopped_by_what_is_no_farther_than_its_radius(quick, starts):
    collides = quick(jax.vmap(env.collides, (None, 0)))
    places = np.stack(np.meshgrid(np.arange(0, 190, 3), np.arange(0, 190, 3)), -1).reshape(-1, 2)
    for index in range(8):
        state = one(starts[0], index)
        far = clearance(state, places)
        np.testing.assert_array_equal(collides(state.layout, places), far <= 8)


def test_the_quickest_way_to_the_box_pays_by_time_and_is_no_shorter_than_the_spec_says(starts, step):
    for index in range(8):
        state = one(starts[0], index)
        actions = plan(state)
        assert len(actions) >= MAZE.spec.shortest
        for t, action in enumerate(actions, 1):
            before = state
            state, now = step(state, jnp.int32(action))
            assert clearance(state, state.place[None])[0] > 8
            assert (now.fingerprint != step(before, jnp.int32((action + 1) % 3))[1].fingerprint) or t == len(actions)
            assert bool(now.terminated) == (t == len(actions))
            assert float(now.reward) == pytest.approx(bool(now.terminated) * (1 - 0.2 * t / 216))
            assert not now.truncated
        late, now = step(before._replace(time=jnp.int32(215)), jnp.int32(actions[-1]))
        assert (float(now.reward), bool(now.terminated), bool(now.truncated)) == (pytest.approx(0.8), True, True)
        assert late.time == 216


def test_time_runs_out_without_a_reward(starts, step):
    state = one(starts[0], 0)
    for t in (213, 214, 215):
        state, now = step(state._replace(time=jnp.int32(t)), jnp.int32(LEFT))
        assert (float(now.reward), bool(now.terminated), bool(now.truncated)) == (0, False, t == 215)


def test_turns_are_undone_and_states_told_apart(starts, step):
    state = one(starts[0], 0)
    left, to_the_left = step(state, jnp.int32(LEFT))
    right, to_the_right = step(state, jnp.int32(RIGHT))
    assert (int(left.facing), int(right.facing)) == (1, 3)
    _, again = step(left, jnp.int32(RIGHT))
    np.testing.assert_array_equal(again.next_obs, starts[1][0])
    _, also = step(right, jnp.int32(LEFT))
    assert again.fingerprint == also.fingerprint  # whatever the time
    assert len({int(s.fingerprint) for s in (to_the_left, to_the_right, again)}) == 3


# The view --------------------------------------------------------------------------------------------------------


def _depth(state: Maze3DState):
    forward = jnp.stack(env.ahead(state.facing)).astype(jnp.float32)
    slope = (jnp.arange(64) + 0.5) / 32 * view.SLOPE - view.SLOPE
    ray = forward[:, None] + slope * jnp.stack([-forward[1], forward[0]])[:, None]
    return view._walls(state.layout, state.place / 20, ray, 0.02).depth


@pytest.fixture(scope="module")
def poses(starts):
    """Free places all over the mazes in all directions."""
    rng, poses = np.random.default_rng(0), []
    while len(poses) < POSES:
        state = one(starts[0], len(poses) % 8)
        place = state.place + 12 * rng.integers(-15, 16, 2)
        if (place > 0).all() and (place < 190).all() and clearance(state, place[None])[0] > 8:
            poses.append(state._replace(place=place.astype(np.int32), facing=np.int32(len(poses) // 8 % 4)))
    return jax.tree.map(lambda *leaves: np.stack(leaves), *poses)


def test_walls_are_where_a_ray_stops(poses, look):
    """Against rays that feel their way in steps of a centimetre."""
    _, depth = look(poses)
    slope = (np.arange(64) + 0.5) / 32 * math.tan(math.pi / 6) - math.tan(math.pi / 6)
    for index in range(POSES):
        state = one(poses, index)
        forward = np.array(AHEAD[state.facing])
        ray = forward + slope[:, None] * np.array([-forward[1], forward[0]])
        low_x, high_x, low_z, high_z = solids(state).T
        way = np.arange(0.05, 12, 0.01)[:, None, None] * 20
        x, z = (state.place[axis] + way * ray[None, :, axis, None] for axis in (0, 1))
        hit = np.zeros(x.shape[:2], bool)
        for k in range(len(low_x)):
            hit |= ((low_x[k] < x) & (x < high_x[k]) & (low_z[k] < z) & (z < high_z[k]))[..., 0]
        felt = 0.05 + 0.01 * hit.argmax(0)
        close = np.abs(felt - depth[index]) < 0.02
        # A ray that grazes a corner may miss it by less than a step.
        assert close.mean() > 0.9
        for column in np.flatnonzero(~close):
            low, high = sorted((felt[max(column - 1, 0)], felt[min(column + 1, 63)]))
            assert low - 0.02 <= depth[index][column] <= high + 0.02


def test_a_wall_close_by_fills_the_view_and_a_way_ahead_shows_floor_and_ceiling(poses, look):
    seen, depth = (array.astype(float) for array in look(poses))
    near, far = depth.max(1) < 2, depth[:, 30:34].min(1) > 4
    assert near.any()
    assert far.any()
    assert (seen[near][..., 0] > seen[near][..., 1]).all()  # bricks are red
    ceiling, floor = seen[far][:, :4, 30:34], seen[far][:, -4:, 30:34]
    np.testing.assert_allclose(ceiling.mean((1, 2, 3)), 0.65 * 160.7, atol=3)
    assert (floor.std((1, 2, 3)) > 40).all()  # black and white


def test_a_mirrored_maze_is_seen_mirrored(poses, look):
    """North and south change places, and so do the sides of the view of whoever looks east or west."""
    facing = np.isin(poses.facing, (0, 2))
    poses = jax.tree.map(lambda leaf: leaf[facing], poses)
    flip = poses.layout.south[:, ::-1]
    walls = layout.Layout(poses.layout.east[:, ::-1], np.concatenate([flip[:, 1:], flip[:, :1]], 1))
    place = np.stack([poses.place[:, 0], 190 - poses.place[:, 1]], 1)
    np.testing.assert_allclose(look(poses._replace(layout=walls, place=place))[1][:, ::-1], look(poses)[1], rtol=1e-4)


@pytest.mark.parametrize("angle", [0.0, 0.4, -1.2])
def test_the_box_is_seen_where_its_corners_are(starts, look, angle):
    state = one(starts[0], 0)
    room = np.argwhere(state.layout.east)[0]
    place, box = np.array([[65 * room[1] + 30, 65 * room[0] + 30], [65 * room[1] + 95, 65 * room[0] + 32]], np.int32)
    state = state._replace(place=place, box=box, facing=np.int32(0), angle=np.float32(angle))
    seen = look(jax.tree.map(lambda leaf: leaf[None], state))[0][0].astype(int)
    red = np.argwhere((seen[..., 0] > 150) & (seen[..., 1] < 40))
    corners = 0.4 * np.array([(x, z) for x in (-1, 1) for z in (-1, 1)])
    ahead = (box - place)[0] / 20 + corners @ (math.cos(angle), math.sin(angle))
    right = (box - place)[1] / 20 + corners @ (-math.sin(angle), math.cos(angle))
    scale = 32 / math.tan(math.pi / 6)
    columns, rows = 32 + scale * right / ahead, 32 + scale * np.outer((0.7, 1.5), 1 / ahead)
    np.testing.assert_allclose(red.min(0), (rows.min(), columns.min()), atol=1.5)
    np.testing.assert_allclose(red.max(0) + 1, (rows.max(), columns.max()), atol=1.5)


# By name ---------------------------------------------------------------------------------------------------------


def test_the_film_shows_the_maze_from_above_beside_the_view(starts):
    picture = MAZE.render(one(starts[0], 0))
    assert (picture.shape, picture.dtype) == ((384, 768, 3), np.uint8)
    above = picture[:, :384]
    state, scale = one(starts[0], 0), 384 / 11.5
    for place, colour in ((state.place, (166, 0, 0)), (state.box, (255, 0, 0))):
        x, z = ((place / 20 + 1) * scale).astype(int)
        assert tuple(above[z, x]) == colour
    np.testing.assert_array_equal(above[0, 0], above[-1, -1])


def test_by_id():
    assert set(IDS) <= set(ids())
    for size, steps in ((2, 96), (3, 216), (16, 6144)):
        spec = Task(f"Maze3D-S{size}-v0").spec
        assert (spec.name, spec.max_steps, spec.kind) == (f"Maze3D-S{size}-v0", steps, "pixels")
        assert 1 < spec.shortest < spec.max_steps
    ours, theirs = presets.choose("Maze3D-S3-v0", "deir"), presets.find("miniworld-deir")
    assert (ours.ppo, ours.bonus, ours.mix) == (theirs.ppo, theirs.bonus, theirs.mix)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Maze3D-S1-v0", "A maze cannot have 1 x 1 rooms. Choose 2 to 16."),
        ("Maze3D-S17-v0", "Choose 2 to 16."),
        ("Maze3D-S-v0", "is not the id of a maze. Write it as in Maze3D-S3-v0."),
        ("Maze3D-S3", "is not the id of a maze."),
        ("Maze3D-S\u00b2-v0", "is not the id of a maze."),
    ],
)
def test_mistakes_are_named(name, words):
    with pytest.raises(UserError, match=words.replace("(", r"\(")):
        make(name)
