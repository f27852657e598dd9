"""Many small arrays as one, in the same bits.

On a GPU every array that a loop carries or stores costs at least one kernel per step, however small it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import bitcast_convert_type

from etd.core.types import Array, PyTree

NUMBERS = tuple(np.dtype(name) for name in ("bool", "int32", "uint32", "float32"))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Packed:
    """A tree whose leaves [N] of these types are rows of one array."""

    rows: Array
    """uint32 [..., K, N]"""
    others: list[Array]
    structure: Any = field(metadata={"static": True})
    types: tuple[np.dtype | None, ...] = field(metadata={"static": True})
    """of each leaf; None for the others"""


def pack(tree: PyTree) -> Packed:
    """At least one leaf must be of the packed kind.

    >>> packed = pack({"time": jnp.arange(3), "done": jnp.array([True, False, True]), "obs": jnp.zeros((3, 2))})
    >>> packed.rows.shape, len(packed.others)
    ((2, 3), 1)
    >>> unpack(packed)["done"]
    Array([ True, False,  True], dtype=bool)
    """
    leaves, structure = jax.tree.flatten(tree)
    types = tuple(leaf.dtype if leaf.ndim == 1 and leaf.dtype in NUMBERS else None for leaf in leaves)
    rows = [_bits(leaf) for leaf, kind in zip(leaves, types, strict=True) if kind]
    others = [leaf for leaf, kind in zip(leaves, types, strict=True) if not kind]
    return Packed(jnp.stack(rows), others, structure, types)


def unpack(packed: Packed) -> PyTree:
    """The tree, with any axes that stacking put before those of every leaf."""
    rows = (packed.rows[..., k, :] for k in range(packed.rows.shape[-2]))
    others = iter(packed.others)
    leaves = [_number(next(rows), kind) if kind else next(others) for kind in packed.types]
    return jax.tree.unflatten(packed.structure, leaves)


def _bits(leaf: Array) -> Array:
    return leaf.astype(jnp.uint32) if leaf.dtype == bool else bitcast_convert_type(leaf, jnp.uint32)


def _number(bits: Array, kind: np.dtype) -> Array:
    return bits != 0 if kind.kind == "b" else bitcast_convert_type(bits, kind)
