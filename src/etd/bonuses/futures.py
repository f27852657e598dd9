"""Positive pairs for contrastive learning: a state and a state from its own future."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from etd.core.types import Array, Key


def steps_left(done: Array) -> Array:
    """How many next observations from step t on belong to t's episode in this rollout, its own included: [T, N] in
    1..T."""
    steps = done.shape[0]
    time = jnp.arange(steps)[:, None]
    last = jax.lax.cummin(jnp.where(done, time, steps - 1), 0, reverse=True)
    return last - time + 1


def truncated_geometric(key: Key, limit: Array, discount: float) -> Array:
    """k on {1 .. limit} with P(k) = (1 - g) g^(k-1) / (1 - g^limit), by inverting the distribution function."""
    u = jax.random.uniform(key, limit.shape)
    if discount == 0.0:
        return jnp.ones_like(limit)
    if discount == 1.0:
        return 1 + jnp.floor(u * limit).astype(limit.dtype)
    log_discount = math.log(discount)
    mass = -jnp.expm1(limit * log_discount)
    k = jnp.ceil(jnp.log1p(-mass * u) / log_discount)
    return jnp.clip(k.astype(limit.dtype), 1, limit)


def sample(key: Key, done: Array, discount: float) -> Array:
    """For every step, how many steps k >= 1 ahead its future is: [T, N].

    k is geometric, truncated to what is left of the episode in this rollout, so a pair never crosses an episode's end.
    The true last observation of an episode is a possible future; the authors' code cannot sample it, although it is
    scored.
    """
    return truncated_geometric(key, steps_left(done), discount)


def pick(next_obs: Array, ahead: Array) -> Array:
    """The observation ``ahead`` [T, N] >= 1 steps after each step's own: rows of ``next_obs`` [T, N, ...]."""
    steps, num_envs = ahead.shape
    index = (jnp.arange(steps)[:, None] + ahead - 1) * num_envs + jnp.arange(num_envs)
    rows = next_obs.reshape(steps * num_envs, -1)[index.reshape(-1)]
    return rows.reshape(next_obs.shape)
