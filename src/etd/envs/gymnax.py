"""Environments of the ``gymnax`` package on the device: ``gymnax:MountainCar-v0``.

gymnax's own ``step`` resets an environment that ends and hides its last observation. Calling the underlying step
instead keeps the true next observation, and keeps time-outs (by gymnax's own limit) apart from termination. Discrete
observations become one-hot vectors, images stay images, other shapes are flattened.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments import spaces

from etd.core.errors import UserError, unknown
from etd.core.hashing import fingerprint
from etd.core.types import PIXELS, Array, Box, Discrete, EnvSpec, Key, PyTree, Transition

PREFIX = "gymnax:"


def make(name: str) -> Gymnax:
    """The environment with an id such as gymnax:MountainCar-v0."""
    known = gymnax.registration.registered_envs
    if name.removeprefix(PREFIX) not in known:
        raise unknown("environment", name, [PREFIX + one for one in known], "See gymnax's list of environments.")
    env = Gymnax(name)
    _ = env.spec  # rejects unsupported spaces
    return env


@lru_cache(maxsize=32)
def _game(name: str) -> tuple[Any, Any]:
    """The environment and its parameters."""
    env, params = gymnax.make(name.removeprefix(PREFIX))
    return env, params


@lru_cache(maxsize=32)
def _spec(name: str) -> EnvSpec:
    env, params = _game(name)
    with jax.ensure_compile_time_eval():  # gymnax computes the bounds of its spaces with JAX
        shape, high = _observed(name, env.observation_space(params))
        action = _action(name, env.action_space(params))
    image = len(shape) == 3
    return EnvSpec(
        name=name,
        obs_shape=shape,
        obs_dtype="float32",
        obs_high=high if image else 1.0,
        action=action,
        max_steps=int(params.max_steps_in_episode),
        shortest=1,
        kind="vector" if not image else "pixels" if min(shape[:2]) >= PIXELS else "grid",
        can_succeed=False,
    )


@dataclass(frozen=True)
class Gymnax:
    """A gymnax environment with its default parameters."""

    name: str

    @property
    def spec(self) -> EnvSpec:
        return _spec(self.name)

    def reset(self, key: Key) -> tuple[PyTree, Array]:
        env, params = _game(self.name)
        obs, state = env.reset_env(key, params)
        return jax.tree.map(jnp.asarray, state), self._seen(obs)

    def step(self, state: PyTree, action: Array, key: Key) -> tuple[PyTree, Transition]:
        env, params = _game(self.name)
        obs, after, reward, terminated, _ = env.step_env(key, state, action, params)
        after = jax.tree.map(lambda new, old: jnp.asarray(new).astype(old.dtype), after, state)
        seen = self._seen(obs)
        transition = Transition(
            next_obs=seen,
            reward=jnp.asarray(reward, jnp.float32).reshape(()),
            terminated=jnp.asarray(terminated, bool).reshape(()),
            truncated=jnp.asarray(env.is_truncated(after, params), bool).reshape(()),
            fingerprint=fingerprint(seen),
        )
        return after, transition

    def _seen(self, obs: Any) -> Array:
        env, params = _game(self.name)
        if isinstance(space := env.observation_space(params), spaces.Discrete):
            return jax.nn.one_hot(obs, space.n)
        return jnp.asarray(obs, jnp.float32).reshape(self.spec.obs_shape)


def _observed(name: str, space: Any) -> tuple[tuple[int, ...], float]:
    """Shape and largest value of the observations."""
    if isinstance(space, spaces.Discrete):
        return (int(space.n),), 1.0
    if not isinstance(space, spaces.Box):
        raise UserError(f"{name} has {type(space).__name__} observations; only Box and Discrete are supported.")
    shape = tuple(int(side) for side in space.shape)
    high = float(np.max(space.high))
    if len(shape) == 3 and min(shape[:2]) >= 3 and np.isfinite(high) and high > 0:
        return shape, high
    return (int(np.prod(shape)),), 1.0


def _action(name: str, space: Any) -> Discrete | Box:
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n))
    if isinstance(space, spaces.Box) and len(space.shape) == 1:
        low, high = (np.unique(np.broadcast_to(np.asarray(bound), space.shape)) for bound in (space.low, space.high))
        if low.size == high.size == 1 and np.isfinite([low[0], high[0]]).all():
            return Box(int(space.shape[0]), float(low[0]), float(high[0]))
    raise UserError(f"{name} has actions {space}; only Discrete and vectors with one finite range are supported.")
