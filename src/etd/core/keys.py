"""Random keys derived by name.

A key is named by its purpose and time, and used once. Adding a consumer does not change any other consumer's stream,
so two runs that differ only in their bonus share the policy's initial weights and every level.
"""

from __future__ import annotations

import zlib

import jax

from etd.core.types import Array, Key


def named(key: Key, name: str, *indices: int | Array) -> Key:
    """The key derived from ``key`` for ``name`` at ``indices`` (an iteration, a step, an environment)."""
    key = jax.random.fold_in(key, zlib.crc32(name.encode()))
    for index in indices:
        key = jax.random.fold_in(key, index)
    return key
