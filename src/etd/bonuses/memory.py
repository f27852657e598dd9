"""Episodic memory: what an environment has seen since its episode began.

At each step: if the memory is empty, store the current observation; compare the next one with everything stored; store
it; clear the memory if the episode ended. Since storing never depends on the comparison, a whole rollout is processed
in one pass: the entries at step t are the carried ones, if its episode began before this rollout, and the rollout's own
observations j <= t of the same episode.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from etd.core.types import Array


class Memory(NamedTuple):
    """Entries of every environment, oldest first."""

    values: Array
    """[N, L, D]"""
    filled: Array
    """[N] int32: number of entries"""


def empty(num_envs: int, capacity: int, size: int, dtype: DTypeLike = jnp.float32) -> Memory:
    """``capacity`` = max_steps + 1 holds every state of the longest episode."""
    return Memory(jnp.zeros((num_envs, capacity, size), dtype), jnp.zeros(num_envs, jnp.int32))


def recall(
    memory: Memory,
    present: Array,
    after: Array,
    done: Array,
    compare: Callable[[Array, Array, Array], Array],
    encode: Callable[[Array], Array] = lambda entries: entries,
) -> tuple[Memory, Array]:
    """Compare every next observation with all that its episode saw before: the memory after the rollout, and [T, N].

    ``present`` and ``after`` [T, N, D] are the entries of each step's observation and of its next one. ``encode`` maps
    entries [..., D] to what is compared; ``compare`` maps past [A, ...], new [B, ...] and a mask of stored entries
    [A, B] to [B], or to [B, K] for K numbers each. Time is processed in blocks to avoid the full [T, L+T] table of
    comparisons.
    """
    past = encode(candidates(memory, present))

    def block(rows: tuple[Array, Array]) -> Array:
        new, held = rows
        return jax.vmap(lambda p, n, h: compare(p, n, h.T), (0, 1, 1), 1)(past, new, held)

    steps = done.shape[0]
    size = math.gcd(steps, 32)
    rows = (encode(after), stored(memory, done))
    blocks = jax.tree.map(lambda x: x.reshape(steps // size, size, *x.shape[1:]), rows)
    found = jax.lax.map(block, blocks)
    return remember(memory, present, after[-1], done), found.reshape(steps, *found.shape[2:])


def occupancy(memory: Memory) -> Array:
    """[] how full the fullest environment's memory is, 0 to 1."""
    return memory.filled.max() / memory.values.shape[1]


def candidates(memory: Memory, present: Array) -> Array:
    """All entries that a step of this rollout may be compared with: [N, L+T, D] from ``present`` [T, N, D]."""
    return jnp.concatenate([memory.values, present.swapaxes(0, 1)], 1)


def stored(memory: Memory, done: Array) -> Array:
    """Which candidates are in memory at each step: [T, N, L+T] bool."""
    steps, capacity = done.shape[0], memory.values.shape[1]
    episode = _episode(done)
    time = jnp.arange(steps)
    carried = (episode == 0)[:, :, None] & (jnp.arange(capacity) < memory.filled[:, None])
    fresh = _fresh(memory, steps)
    same = episode[:, :, None] == episode.T
    return jnp.concatenate([carried, same & (time[:, None, None] >= time) & fresh], 2)


def remember(memory: Memory, present: Array, last: Array, done: Array) -> Memory:
    """The memory after the rollout; ``present`` [T, N, D], ``last`` [N, D] the final next observation."""
    steps, capacity = done.shape[0], memory.values.shape[1]
    episode = _episode(done)
    ongoing = episode[-1]
    rows = jnp.concatenate([present, last[None]]).swapaxes(0, 1)
    # Slots hold the carried entries, then the rollout's rows from the first one that is not yet in memory.
    keep = jnp.where(ongoing == 0, memory.filled, 0)
    first = jnp.where(ongoing == 0, (memory.filled > 0).astype(jnp.int32), (episode < ongoing).sum(0))
    slot = jnp.arange(capacity)
    source = jnp.clip(slot - keep[:, None] + first[:, None], 0, steps)
    new = jnp.take_along_axis(rows, source[:, :, None], 1)
    values = jnp.where((slot < keep[:, None])[:, :, None], memory.values, new)
    count = jnp.where(done[-1], 0, keep + steps + 1 - first)
    return Memory(values, count)


def _episode(done: Array) -> Array:
    """[T, N] number of each step's episode, counted within the rollout."""
    ended = jnp.cumsum(done, 0)
    return ended - done


def _fresh(memory: Memory, steps: int) -> Array:
    """[N, T] False for row 0 if it is already the carried memory's last entry."""
    return ~((jnp.arange(steps) == 0) & (memory.filled > 0)[:, None])
