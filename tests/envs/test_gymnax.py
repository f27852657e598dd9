"""gymnax behind our interface: what its own step says, with the true successor where that one hides it."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("gymnax", reason="the test extra has gymnax on Python 3.12 and older: it keeps jax below 0.12")
import gymnax as package
from gymnax.environments import spaces

import etd
from etd.core.errors import UserError
from etd.core.types import Box, Discrete
from etd.envs import Task, custom, gymnax
from etd.envs.base import random_actions

ENVS = 4

pytestmark = pytest.mark.usefixtures("compile_quickly")


@pytest.mark.parametrize(
    ("name", "steps", "ends", "shape", "kind", "action"),
    [
        ("FrozenLake-misc", 60, {"terminated"}, (16,), "vector", Discrete(4)),
        ("CartPole-v1", 60, {"terminated"}, (4,), "vector", Discrete(2)),
        ("MountainCar-v0", 210, {"truncated"}, (2,), "vector", Discrete(3)),
        ("Pendulum-v1", 210, {"truncated"}, (3,), "vector", Box(1, -2.0, 2.0)),
        ("DeepSea-bsuite", 20, {"terminated", "truncated"}, (64,), "vector", Discrete(2)),
        ("Breakout-MinAtar", 60, {"terminated"}, (10, 10, 4), "grid", Discrete(3)),
    ],
)
def test_steps_are_gymnaxs_own(name, steps, ends, shape, kind, action) -> None:
    """From the same states by the same keys, episode after episode as gymnax begins them."""
    game, params = package.make(name)
    env = gymnax.make(f"gymnax:{name}")
    custom.verify(env)
    assert (env.spec.obs_shape, env.spec.kind, env.spec.action) == (shape, kind, action)
    assert env.spec.max_steps == params.max_steps_in_episode

    def seen(obs):
        return jax.nn.one_hot(obs, 16) if name == "FrozenLake-misc" else jnp.asarray(obs, jnp.float32).reshape(shape)

    def one(state, now):
        action, key = now
        after, ours = env.step(state, action, jax.random.split(key)[0])
        _, theirs, reward, terminated, truncated, info = game.step(key, state, action, params)
        theirs = jax.tree.map(lambda new, old: jnp.asarray(new).astype(old.dtype), theirs, state)
        same = jax.tree.map(lambda a, b: jnp.allclose(a, b, 1e-5, 1e-6), after, theirs)
        going_on = jnp.all(jnp.stack(jax.tree.leaves(same)))
        return theirs, (ours, seen(info["final_observation"]), reward, terminated, truncated, going_on)

    def play(key):
        state, first = env.reset(key)
        actions = random_actions(action, key, (steps,))
        rows = jax.lax.scan(one, state, (actions, jax.random.split(key, steps)))[1]
        return first, seen(game.reset(key, params)[0]), rows

    keys = jax.random.split(jax.random.key(0), ENVS)
    first, their_first, rows = jax.device_get(jax.jit(jax.vmap(play))(keys))
    ours, obs, reward, terminated, truncated, going_on = rows
    np.testing.assert_array_equal(first, their_first)
    np.testing.assert_allclose(ours.next_obs, obs, 1e-5, 1e-6)
    np.testing.assert_allclose(ours.reward, reward, 1e-5)
    np.testing.assert_array_equal(ours.terminated, terminated)
    np.testing.assert_array_equal(ours.truncated, truncated)
    assert {word for word, end in (("terminated", terminated), ("truncated", truncated)) if end.any()} == ends
    assert going_on[~(terminated | truncated)].all()
    assert not going_on[terminated | truncated].all()  # there gymnax has begun anew, and hides what was seen last
    assert ours.next_obs.dtype == np.float32
    assert kind == "vector" or ours.next_obs.max() <= env.spec.obs_high


def test_what_gymnax_does_not_have_is_refused() -> None:
    with pytest.raises(UserError, match=r"'gymnax:MountainCr-v0'.*'gymnax:MountainCar-v0'"):
        Task("gymnax:MountainCr-v0").make()
    with pytest.raises(UserError, match=r"^x .*Tuple.* only "):
        gymnax._observed("x", spaces.Tuple((spaces.Discrete(2),)))
    for space in (
        spaces.Box(-1.0, 1.0, (2, 2)),
        spaces.Box(-np.inf, np.inf, (2,)),
        spaces.Tuple((spaces.Discrete(2),)),
    ):
        with pytest.raises(UserError, match=r"^x .* vectors with one finite range"):
            gymnax._action("x", space)


@pytest.mark.slow
def test_it_trains_and_resumes(tmp_path: Path) -> None:
    tiny = {
        "ppo.minibatch": 32,
        "ppo.features": 8,
        "ppo.latent": 8,
        "ppo.epochs": 1,
        "num_envs": 4,
        "rollout_steps": 16,
    }
    run = etd.train("gymnax:DeepSea-bsuite", "none", steps=64, out=tmp_path / "run", quiet=True, fields=tiny)
    etd.resume(run.path, steps=128, quiet=True)
    logged = etd.Run.open(run.path).metrics()
    assert logged["step"].tolist() == [64, 128]
    assert logged["alive"].all()
    assert logged["episodes"][-1] == 16  # two in every rollout of each environment
