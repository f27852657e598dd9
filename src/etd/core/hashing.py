"""32-bit hashes of arrays that depend on every input bit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

if TYPE_CHECKING:  # types import this module
    from etd.core.types import Array, PyTree


def scramble(x: Array) -> Array:
    """A bijection of 32-bit words: flipping one input bit flips about half of the output bits (MurmurHash3's
    finalizer)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def bits(x: Array) -> Array:
    """Numbers as uint32 words of the same shape; floats keep their bit pattern."""
    real = jnp.issubdtype(x.dtype, jnp.floating)
    return jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32) if real else x.astype(jnp.uint32)


def fingerprint(tree: PyTree) -> Array:
    """[] uint32 hash of a state or an observation, for ``Transition.fingerprint``.

    >>> import jax.numpy as jnp
    >>> bool(fingerprint(jnp.array([1.0, 2.0])) == fingerprint(jnp.array([2.0, 1.0])))
    False
    """
    words = jnp.concatenate([bits(jnp.asarray(leaf)).reshape(-1) for leaf in jax.tree.leaves(tree)])
    place = jnp.arange(words.size, dtype=jnp.uint32)
    return scramble(scramble(words ^ scramble(place)).sum(dtype=jnp.uint32))
