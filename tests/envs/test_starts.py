"""No environment waits for a start or gets one twice: a rollout's pool lasts for the quickest play there can be.

That no episode is shorter than ``spec.shortest`` is shown in test_minigrid.py, by exhaustive search.
"""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import pytest
from solver import Solver

from etd.core.keys import named
from etd.core.types import EnvSpec, Transition
from etd.envs import autoreset
from etd.envs.minigrid import IDS, MiniGrid, make
from etd.envs.minigrid.actions import FORWARD, RIGHT
from etd.envs.minigrid.world import World
from etd.training.presets import PRESETS

ROLLOUT, ENVS = PRESETS["minigrid-etd"].rollout_steps, PRESETS["minigrid-etd"].num_envs
ROLLOUTS = 3


def starts_used(spec: EnvSpec, rollout: int, elapsed: int) -> np.ndarray:
    """[ROLLOUTS] starts that each rollout uses up if every episode ends as soon as it can, the first of them being
    ``elapsed`` steps old when it comes over."""
    age, used = elapsed, np.zeros(ROLLOUTS, int)
    for t in range(ROLLOUTS * rollout):
        age += 1
        if age >= spec.shortest:
            used[t // rollout] += 1
            age = 0
    return used


@pytest.mark.parametrize("rollout", sorted({preset.rollout_steps for preset in PRESETS.values()}))
def test_a_pool_lasts_for_the_quickest_play(rollout: int) -> None:
    """In every level and in what the presets make of one; whatever the age of the episode that comes over, the pool
    suffices, and one start fewer would not."""
    tasks = {preset.env for preset in PRESETS.values() if preset.env.id in IDS}
    specs = [make(name).spec for name in IDS] + [task.make().spec for task in tasks]
    assert all(1 <= spec.shortest <= spec.max_steps for spec in specs)
    for spec in {spec.shortest: spec for spec in specs}.values():
        used = [starts_used(spec, rollout, elapsed) for elapsed in range(spec.shortest)]
        assert np.max(used) == autoreset.pool_size(spec, rollout)


def play(quick, env: MiniGrid, key: jax.Array, actions: np.ndarray) -> tuple[autoreset.Envs, Transition, np.ndarray]:
    """The environments before each of ``actions`` [T, N], what followed [T, N], and the starts used per rollout.

    Each start is taken from its own row of the pool, so none is taken twice.
    """
    size = autoreset.pool_size(env.spec, ROLLOUT)

    @quick
    def rollout(envs: autoreset.Envs, actions: np.ndarray):
        pool = autoreset.generate(env, key, envs, size)

        def one(envs: autoreset.Envs, action: jax.Array):
            after, step = autoreset.step(env, pool, envs, action, key)
            return after, (envs, step)

        return *jax.lax.scan(one, envs, actions), pool.first

    envs, rows, used = quick(lambda: autoreset.begin(env, key, actions.shape[1]))(), [], []
    for now in actions.reshape(-1, ROLLOUT, actions.shape[1]):
        envs, row, first = jax.device_get(rollout(envs, now))
        before, step = row
        assert (before.episode - first)[step.done].max() < size
        rows.append(row)
        used.append(envs.episode - first)
    return *jax.tree.map(lambda *leaves: np.concatenate(leaves), *rows), np.array(used)


def test_the_quickest_play_uses_up_a_whole_pool(quick) -> None:
    """The worst case in earnest: Empty-5x5 allows five steps to every episode."""
    env = make("MiniGrid-Empty-5x5-v0")
    steps, plan = ROLLOUTS * ROLLOUT, [FORWARD, FORWARD, RIGHT, FORWARD, FORWARD]
    actions = np.repeat(np.resize(plan, (steps, 1)), ENVS, 1)
    before, step, used = play(quick, env, jax.random.key(4), actions)
    ends = (np.arange(steps) + 1) % env.spec.shortest == 0
    np.testing.assert_array_equal(step.done, np.repeat(ends[:, None], ENVS, 1))
    np.testing.assert_array_equal(before.episode[:, 0], 1 + np.cumsum(ends) - ends)
    assert used.max() == autoreset.pool_size(env.spec, ROLLOUT)


def test_every_episode_starts_from_the_level_of_its_name(quick) -> None:
    """Every level (n, k) is planned for beforehand and solved by its plan when environment n comes to episode k; one
    that came twice, or out of turn, would not be."""
    env, key, steps = make("MiniGrid-DoorKey-5x5-v0"), jax.random.key(5), ROLLOUTS * ROLLOUT
    most = ROLLOUTS * autoreset.pool_size(env.spec, ROLLOUT)

    @quick
    @partial(jax.vmap, in_axes=(0, None))
    @partial(jax.vmap, in_axes=(None, 0))
    def level(n: jax.Array, k: jax.Array) -> World:
        return env.level.generate(named(key, "level", n, k))

    levels = jax.device_get(level(np.arange(ENVS), np.arange(most)))  # [N, K]
    assert np.diff(levels.grid, axis=1).any(axis=(2, 3)).mean() > 0.5  # a level is seldom like the one before
    plans: list[list[int]] = [[] for _ in range(ENVS)]
    ends = np.zeros((steps, ENVS), bool)
    for n, plan in enumerate(plans):
        for k in range(most):
            plan += Solver(jax.tree.map(lambda leaf, n=n, k=k: leaf[n, k], levels), env.level.rule).solve()
            if len(plan) > steps:
                break
            ends[len(plan) - 1, n] = True
    before, step, _ = play(quick, env, key, np.array([plan[:steps] for plan in plans]).T)
    np.testing.assert_array_equal(step.done, ends)
    np.testing.assert_array_equal(step.reward > 0, ends)
    t, n = np.nonzero(before.now.state.time == 0)
    k = before.episode[t, n] - 1
    assert len(set(zip(n, k, strict=True))) == len(n) == ENVS + ends[:-1].sum()
    for met, meant in zip(before.now.state, levels, strict=True):
        np.testing.assert_array_equal(met[t, n], meant[n, k])
