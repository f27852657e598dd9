"""N device environments in parallel, each starting its next episode from a level generated ahead of time.

Under vmap a conditional becomes a select, so with a level generator inside ``step`` every environment would pay for it
at every step. Instead each rollout starts with a pool of starts, generated in one batch, and an environment that
finishes takes its next one. The k-th episode of environment n depends only on (key, n, k), not on the policy, the
rollout length or a resume: unused starts are simply generated again, and runs that differ only in their bonus see the
same levels.
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
    """[N, ...] current states and observations"""
    episode: Array
    """[N] int32: how many episodes each has begun since the start of the run"""


class StartPool(NamedTuple):
    """The next starts of every environment."""

    starts: Start
    """[K, N, ...]"""
    first: Array
    """[N] int32: the episode number of row 0"""


def pool_size(spec: EnvSpec, steps: int) -> int:
    """Enough starts for ``steps`` steps of one environment: an episode takes at least ``spec.shortest`` steps."""
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
    """[N] the key of each environment when ``step`` is given ``key``."""
    return jax.random.split(key, num_envs)


def repeated(pool: StartPool, envs: Envs) -> Array:
    """[] how many starts of this pool were used more than once to reach ``envs``."""
    return jnp.maximum(envs.episode - pool.first - _size(pool), 0).sum()


def _size(pool: StartPool) -> int:
    return jax.tree.leaves(pool.starts)[0].shape[0]


def step(env: DeviceEnv, pool: StartPool, envs: Envs, action: Array, key: Key) -> tuple[Envs, Transition]:
    """Step all environments; one that ends takes its next start. Actions [N, ...]."""
    keys = step_keys(key, envs.episode.shape[0])
    state, transition = jax.vmap(env.step)(envs.now.state, action, keys)
    if transition.fingerprint is None:
        transition = transition._replace(fingerprint=jax.vmap(fingerprint)(transition.next_obs))
    # Runs out only if an episode was shorter than the spec says: then the last start repeats; ``repeated`` counts it.
    row = jnp.minimum(envs.episode - pool.first, _size(pool) - 1)
    fresh = jax.tree.map(lambda leaf: jax.vmap(lambda column, i: column[i], (1, 0))(leaf, row), pool.starts)
    carried = Start(state, transition.next_obs)

    def choose(new: Array, old: Array) -> Array:
        return jnp.where(transition.done.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    return Envs(jax.tree.map(choose, fresh, carried), envs.episode + transition.done), transition
