"""Random keys derived by name.

A key is named by what it is for and when, and used once. Adding a consumer moves no other consumer's stream, so two
runs that differ only in their bonus share the policy's first weights and every level they meet.
"""

from __future__ import annotations

import zlib

import jax

from etd.core.types import Array, Key


def named(key: Key, name: str, *indices: int | Array) -> Key:
    """The key of ``name`` at ``indices`` (an iteration, a step, an environment) below ``key``."""
    key = jax.random.fold_in(key, zlib.crc32(name.encode()))
    for index in indices:
        key = jax.random.fold_in(key, index)
    return key
