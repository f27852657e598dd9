"""Episodic visit counts: how often each observation was seen this episode, by comparing 64-bit hashes.

Two different observations collide with a probability of about 2^-64: among the 2560 states of a long episode, once in
10^13 episodes.
"""

from __future__ import annotations

import jax.numpy as jnp

from etd.bonuses import memory
from etd.bonuses.memory import Memory
from etd.core.hashing import bits, scramble
from etd.core.types import Array, Rollout


def empty(num_envs: int, max_steps: int) -> Memory:
    return memory.empty(num_envs, max_steps + 1, 2, jnp.uint32)


def count(seen: Memory, rollout: Rollout) -> tuple[Memory, Array]:
    """N_e(o_{t+1}) [T, N] for every next observation, itself included; 1 means seen for the first time."""

    def equal(past: Array, new: Array, stored: Array) -> Array:
        same = (past[:, None] == new).all(-1) & stored
        return 1 + same.sum(0)

    return memory.recall(seen, code(rollout.obs[:-1]), code(rollout.next_obs), rollout.done, equal)


def code(obs: Array) -> Array:
    """A hash of two words per observation: [T, N, ...] to uint32 [T, N, 2]. Every bit matters, noise included."""
    words = bits(obs).reshape(*obs.shape[:2], -1)
    place = jnp.arange(words.shape[-1], dtype=jnp.uint32)
    halves = [scramble(words ^ scramble(2 * place + half)).sum(-1) for half in range(2)]
    return scramble(jnp.stack(halves, -1))
