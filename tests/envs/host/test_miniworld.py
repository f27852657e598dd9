"""MiniWorld's maze: its rules, recomputed from where its walls are."""

from __future__ import annotations

import gc
import math
import subprocess
import sys
from collections import deque

import numpy as np
import pytest

from etd.envs import families, host

if why := families.find("MiniWorld-MazeS3-v0").absence():
    pytest.skip(why, allow_module_level=True)

pytestmark = pytest.mark.suites
LEFT, RIGHT, FORWARD = range(3)


@pytest.fixture(scope="module")
def mazes():
    gc.collect()  # what other tests drew with lets go of OpenGL now, and not in the middle of a maze
    return {size: host.make(f"MiniWorld-MazeS{size}-v0") for size in (3, 4, 5)}


def distances(env, size: int) -> np.ndarray:
    """[n*n, n*n] rooms to go between rooms, by Floyd and Warshall; two are joined if nobody is stopped between them."""
    centres = [np.array([1.5 + 3.25 * i, 0.0, 1.5 + 3.25 * j]) for j in range(size) for i in range(size)]
    far = np.full((size**2, size**2), np.inf)
    for a, one in enumerate(centres):
        for b, other in enumerate(centres):
            if a == b:
                far[a, b] = 0
            elif np.abs(one - other).sum() < 3.3 and not env.intersect(env.box, (one + other) / 2, 0.4):
                far[a, b] = 1
    for via in range(size**2):
        far = np.minimum(far, far[:, via, None] + far[via])
    return far


def room(entity, size: int) -> int:
    x, z = (entity.pos[[0, 2]] - 1.5) / 3.25
    assert (x, z) == (pytest.approx(round(x)), pytest.approx(round(z)))  # in the centre
    return round(z) * size + round(x)


def plan(env) -> list[int]:
    """A shortest way to the box, found by trying every action everywhere."""
    agent, start = env.agent, (env.agent.pos.copy(), env.agent.dir)
    queue, seen = deque([(*start, [])]), set()
    while queue:
        pos, angle, actions = queue.popleft()
        for action in (LEFT, RIGHT, FORWARD):
            agent.pos, agent.dir = pos, angle
            if action == FORWARD:
                env.move_agent(0.6, 0.0)
            else:
                env.turn_agent(90 if action == LEFT else -90)
            key = (*np.round(agent.pos / 0.1).astype(int), round(agent.dir / (math.pi / 2)) % 4)
            if key in seen:
                continue
            seen.add(key)
            if np.linalg.norm(agent.pos - env.box.pos) < 1.6257:
                agent.pos, agent.dir = start
                return [*actions, action]
            queue.append((agent.pos.copy(), agent.dir, [*actions, action]))
    raise AssertionError("no way to the box")


@pytest.mark.parametrize("size", [3, 4, 5])
def test_agent_and_box_stand_at_the_ends_of_the_longest_way(mazes, size) -> None:
    env = mazes[size]
    for seed in range(20):
        env.reset(seed=seed)
        far = distances(env, size)
        assert np.isfinite(far).all()
        assert far[room(env.agent, size), room(env.box, size)] == far.max()
        assert env.agent.dir == 0.0


@pytest.mark.parametrize(("size", "limit"), [(3, 216), (4, 384), (5, 600)])
def test_the_box_is_reached_and_paid_by_time(mazes, size, limit) -> None:
    env = mazes[size]
    assert env.max_steps == limit
    for seed in range(3):
        env.reset(seed=seed)
        actions = plan(env)
        for t, action in enumerate(actions, 1):
            _, reward, terminated, truncated, _ = env.step(action)
            assert terminated == (t == len(actions))
            assert reward == pytest.approx(terminated * (1 - 0.2 * t / limit))
            assert not truncated


def test_the_last_step_still_pays(mazes) -> None:
    env = mazes[3]
    env.reset(seed=0)
    actions = plan(env)
    for action in actions[:-1]:
        env.step(action)
    env.step_count = 215
    assert env.step(actions[-1])[1:4] == (pytest.approx(0.8), True, True)


def test_time_is_a_truncation(mazes) -> None:
    env = mazes[3]
    env.reset(seed=0)
    steps = [env.step(LEFT)[1:4] for _ in range(216)]
    assert steps == [(0.0, False, False)] * 215 + [(0.0, False, True)]


def test_near_enough(mazes) -> None:
    env = mazes[3]
    env.reset(seed=0)
    for distance, near in ((1.6256, True), (1.6258, False)):
        env.agent.pos = env.box.pos + np.array([distance, 0.0, 0.0])
        assert env.near(env.box) == near


def test_mazes_in_one_process_do_not_show_each_others_walls(mazes) -> None:
    actions = (LEFT, LEFT, FORWARD, LEFT)

    def frames(env, seed: int) -> list[np.ndarray]:
        return [env.reset(seed=seed)[0], *(env.step(action)[0] for action in actions)]

    one, other = frames(mazes[3], 0), frames(mazes[5], 1)
    assert not np.array_equal(one, other)
    mazes[3].reset(seed=0)
    mazes[5].reset(seed=1)
    for t, action in enumerate(actions, 1):
        np.testing.assert_array_equal(mazes[3].step(action)[0], one[t])
        np.testing.assert_array_equal(mazes[5].step(action)[0], other[t])


def test_without_opengl_a_sentence_says_so() -> None:
    code = """
import pyglet.lib
def gone(*names, **options): raise ImportError(f'Library "{names[0]}" not found.')
pyglet.lib.loader.load_library = pyglet.lib.load_library = gone
from etd.envs import host
try:
    host.make("MiniWorld-MazeS3-v0")
except ValueError as error:
    print(error)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.startswith("MiniWorld cannot be drawn: OpenGL without a display failed (ImportError: Library")
    assert "apt-get install libegl1" in out
