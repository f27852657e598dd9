"""N device environments side by side, each starting its next episode from levels generated ahead of use.

Under vmap a conditional becomes a select, so a generator inside ``step`` would be paid by every environment at every
step. Instead a rollout brings a pool of starts along, generated in one batch, and a finishing environment takes its
next. The k-th episode of environment n is named by (key, n, k) alone: it does not depend on the policy, the rollout
length or a resume, unused starts are simply generated again, and runs that differ in their bonus meet the same levels.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from etd.core.hashing import fingerprint
from etd.core.keys import named
from etd.core.types import Array, EnvSpec, Key, PyTree, Transition
from etd.envs.base import DeviceEnv


class Start(NamedTuple):
    """The first state of an episode and its observation."""

    state: PyTree
    obs: Array


class Envs(NamedTuple):
    """N running environments."""

    now: Start
    """[N, ...] present states and what the policy sees"""
    episode: Array
    """[N] int32: how many episodes each has begun since the run began"""


class StartPool(NamedTuple):
    """The next starts of every environment."""

    starts: Start
    """[K, N, ...]"""
    first: Array
    """[N] int32: the episode that row 0 starts"""


def pool_size(spec: EnvSpec, steps: int) -> int:
    """Enough starts for ``steps`` steps of one environment: an episode takes at least ``spec.shortest``."""
    return -(-steps // spec.shortest)


def _starts(env: DeviceEnv, key: Key, episode: Array) -> Start:
    """Start number ``episode`` [N] of every environment, [N, ...]."""

    def one(index: Array, episode: Array) -> Start:
        return Start(*env.reset(named(key, "level", index, episode)))

    return jax.vmap(one)(jnp.arange(episode.shape[0]), episode)


def begin(env: DeviceEnv, key: Key, num_envs: int) -> Envs:
    """Every environment at the start of its episode 0."""
    return Envs(_starts(env, key, jnp.zeros(num_envs, jnp.int32)), jnp.ones(num_envs, jnp.int32))


def generate(env: DeviceEnv, key: Key, envs: Envs, size: int) -> StartPool:
    """The next ``size`` starts of every environment, in one batch."""
    episodes = envs.episode + jnp.arange(size)[:, None]
    return StartPool(jax.vmap(lambda e: _starts(env, key, e))(episodes), envs.episode)


def step_keys(key: Key, num_envs: int) -> Key:
    """[N] what each environment's step draws from, where ``key`` is given to ``step``."""
    return jax.random.split(key, num_envs)


def repeated(pool: StartPool, envs: Envs) -> Array:
    """[] how many starts were taken a second time, by environments that came to ``envs`` with this pool."""
    return jnp.maximum(envs.episode - pool.first - _size(pool), 0).sum()


def _size(pool: StartPool) -> int:
    return jax.tree.leaves(pool.starts)[0].shape[0]


def step(env: DeviceEnv, pool: StartPool, envs: Envs, action: Array, key: Key) -> tuple[Envs, Transition]:
    """Advance all environments; one that ends takes its next start. Actions [N, ...]."""
    keys = step_keys(key, envs.episode.shape[0])
    state, transition = jax.vmap(env.step)(envs.now.state, action, keys)
    if transition.fingerprint is None:
        transition = transition._replace(fingerprint=jax.vmap(fingerprint)(transition.next_obs))
    # Runs over only where an episode was shorter than the spec says: its last start repeats, and ``repeated`` tells.
    row = jnp.minimum(envs.episode - pool.first, _size(pool) - 1)
    fresh = jax.tree.map(lambda leaf: jax.vmap(lambda column, i: column[i], (1, 0))(leaf, row), pool.starts)
    carried = Start(state, transition.next_obs)

    def choose(new: Array, old: Array) -> Array:
        return jnp.where(transition.done.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    return Envs(jax.tree.map(choose, fresh, carried), envs.episode + transition.done), transition
