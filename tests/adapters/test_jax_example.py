"""examples/jax_etd.py: a training as one compiled function, with the bonus of the true transitions."""

from __future__ import annotations

import importlib
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("gymnax", reason="the test extra has gymnax on Python 3.12 and older: it keeps jax below 0.12")
import gymnax

import etd

LIMIT, ENVS, STEPS = 6, 4, 16


@pytest.fixture(scope="module")
def example(examples: Path) -> ModuleType:
    return importlib.import_module("jax_etd")


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Episodes that end by time within a rollout."""
    make = gymnax.make

    def impatient(name: str) -> tuple[Any, Any]:
        env, params = make(name)
        return env, params.replace(max_steps_in_episode=LIMIT)

    monkeypatch.setattr(gymnax, "make", impatient)


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_two_iterations_of_two_seeds(example, monkeypatch):
    """And what bonuses are given is what the environments did."""
    seen: list[etd.Rollout] = []
    of = etd.Rollout.of

    def listen(*steps: Any) -> etd.Rollout:
        rollout = of(*steps)
        jax.debug.callback(lambda one: seen.append(one), rollout)
        return rollout

    monkeypatch.setattr(etd.Rollout, "of", listen)
    config = example.Config(num_envs=ENVS, rollout_steps=STEPS, epochs=1, minibatch=32, intrinsic=0.1)
    init, train = example.make_train(config)
    run = jax.jit(jax.vmap(lambda key: train(init(key), jax.random.split(key))))  # two iterations
    state, metrics = run(jax.random.split(jax.random.key(0), 2))
    assert {name: value.shape for name, value in metrics.items()} == dict.fromkeys(metrics, (2, 2))
    assert all(np.isfinite(value).all() for value in metrics.values())
    assert not np.allclose(*(jax.tree.leaves(state.params)[0]))  # two seeds, two trainings
    assert len(seen) == 4
    env, params = gymnax.make(config.env)
    key = jax.random.key(0)
    start, scale = env.reset_env(key, params)[1], env.observation_space(params).high

    @jax.jit
    @partial(jnp.vectorize, signature="(d),()->(d)")
    def move(obs: jax.Array, action: jax.Array) -> jax.Array:
        place, speed = obs * scale
        return env.step_env(key, start.replace(position=place, velocity=speed), action, params)[0] / scale

    for rollout in seen:
        assert rollout.done.any()
        np.testing.assert_allclose(rollout.next_obs, move(rollout.obs[:-1], rollout.action), atol=1e-5)
        after, going = rollout.obs[1:-1], ~np.asarray(rollout.done)[:-1]
        np.testing.assert_array_equal(after[going], rollout.next_obs[:-1][going])
        assert not np.allclose(after[~going], rollout.next_obs[:-1][~going])


def test_advantages_end_with_the_episode(example):
    draw = np.random.default_rng(0)
    reward, value, next_value = draw.normal(size=(3, STEPS, ENVS)).astype(np.float32)
    terminated, truncated = draw.random((2, STEPS, ENVS)) < 0.15
    steps = example.Step(*[None] * 4, jnp.asarray(terminated), jnp.asarray(truncated), None)
    config = example.Config(gamma=0.9, gae_lambda=0.8)
    found = example.advantages(*map(jnp.asarray, (reward, value, next_value)), steps, config)
    for start, env in np.ndindex(STEPS, ENVS):
        total, weight = 0.0, 1.0
        for time in range(start, STEPS):
            worth = 0.0 if terminated[time, env] else next_value[time, env]
            total += weight * (reward[time, env] + 0.9 * worth - value[time, env])
            weight *= 0.9 * 0.8
            if terminated[time, env] or truncated[time, env]:
                break
        np.testing.assert_allclose(found[start, env], total, rtol=1e-4, atol=1e-5)
