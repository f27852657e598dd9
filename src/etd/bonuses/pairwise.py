"""Differences of all pairs, folded over coordinates: GPU kernels, and the same in plain JAX.

XLA reads each coordinate again for every pair. A kernel reads it once for a tile of pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas
from jax.experimental.pallas import triton

from etd.core.types import Array

Combine = Callable[[Array, Array], Array]

TILED = False
"""Whether a GPU gets the kernels: not before they have run on one."""
TILE = 64
"""Rows and columns of a tile of pairs."""
ROWS, COLUMNS, DEPTH = 16, 32, 8
"""Of a tile of pairs and coordinates, in which gradients are added up."""


def fold(combine: Combine, x: Array, y: Array) -> Array:
    """combine(... combine(0, x_0 - y_0) ..., x_D - y_D) for every pair: [A, D] and [B, D] to [A, B]."""
    plain, tiles = partial(fold_plainly, combine), partial(fold_tiles, combine)
    return jax.lax.platform_dependent(x, y, cuda=tiles, default=plain) if _fits(x, y) else plain(x, y)


def _fits(x: Array, y: Array) -> bool:
    return TILED and not (len(x) % TILE or len(y) % TILE or x.shape[1] % DEPTH)


def fold_plainly(combine: Combine, x: Array, y: Array) -> Array:
    total = jnp.zeros((x.shape[0], y.shape[0]), x.dtype)
    for a, b in zip(x.T, y.T, strict=True):  # unrolled, so XLA fuses it into one loop
        total = combine(total, a[:, None] - b)
    return total


def fold_tiles(combine: Combine, x: Array, y: Array, interpret: bool = False) -> Array:
    def kernel(x: Any, y: Any, out: Any) -> None:
        def add(k: Array, total: Array) -> Array:
            return combine(total, x[k, :][:, None] - y[k, :][None, :])

        out[...] = jax.lax.fori_loop(0, depth, add, jnp.zeros((TILE, TILE), out.dtype))

    depth = x.shape[1]
    return pallas.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((len(x), len(y)), x.dtype),
        grid=(len(x) // TILE, len(y) // TILE),
        in_specs=[
            pallas.BlockSpec((depth, TILE), lambda i, j: (0, i)),
            pallas.BlockSpec((depth, TILE), lambda i, j: (0, j)),
        ],
        out_specs=pallas.BlockSpec((TILE, TILE), lambda i, j: (i, j)),
        compiler_params=triton.CompilerParams(num_warps=4),
        interpret=interpret,
        name="pairwise_fold",
    )(x.T, y.T)


def attained(x: Array, y: Array, top: Array, grad: Array) -> tuple[Array, Array]:
    """grad_ab [x_ai - y_bi = top_ab] summed over b [A, D] and over a [B, D], for x [A, D], y [B, D] and top, grad
    [A, B]."""
    branches = {"cpu": attained_one_by_one, "default": attained_at_once}
    if _fits(x, y):
        branches["cuda"] = attained_tiles
    return jax.lax.platform_dependent(x, y, top, grad, **branches)


def attained_at_once(x: Array, y: Array, top: Array, grad: Array) -> tuple[Array, Array]:
    """Two fused reductions. These are slow on a CPU: the loss and gradient of 512 pairs took 135 ms or more with them,
    and 20 to 31 ms with a loop over coordinates."""
    pull = jnp.where(x.T[:, :, None] - y.T[:, None, :] == top, grad, 0)
    return pull.sum(2).T, pull.sum(1).T


def attained_one_by_one(x: Array, y: Array, top: Array, grad: Array) -> tuple[Array, Array]:
    def one(_: None, columns: tuple[Array, Array]) -> tuple[None, tuple[Array, Array]]:
        a, b = columns
        pull = jnp.where(a[:, None] - b == top, grad, 0)
        return None, (pull.sum(1), pull.sum(0))

    over_b, over_a = jax.lax.scan(one, None, (x.T, y.T))[1]
    return over_b.T, over_a.T


def attained_tiles(x: Array, y: Array, top: Array, grad: Array, interpret: bool = False) -> tuple[Array, Array]:
    return _attained(x, y, top, grad, interpret), _attained(-y, -x, top.T, grad.T, interpret)


def _attained(x: Array, y: Array, top: Array, grad: Array, interpret: bool) -> Array:
    """The sum over b."""

    def kernel(x: Any, y: Any, top: Any, grad: Any, out: Any) -> None:
        here = x[...][:, None, :]

        def add(block: Array, total: Array) -> Array:
            part = pallas.ds(block * COLUMNS, COLUMNS)
            hit = here - y[part, :][None] == top[:, part][:, :, None]
            return total + jnp.where(hit, grad[:, part][:, :, None], 0.0).sum(1)

        out[...] = jax.lax.fori_loop(0, blocks, add, jnp.zeros((ROWS, DEPTH), out.dtype))

    blocks = len(y) // COLUMNS
    return pallas.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(len(x) // ROWS, x.shape[1] // DEPTH),
        in_specs=[
            pallas.BlockSpec((ROWS, DEPTH), lambda i, k: (i, k)),
            pallas.BlockSpec((len(y), DEPTH), lambda i, k: (0, k)),
            pallas.BlockSpec((ROWS, len(y)), lambda i, k: (i, 0)),
            pallas.BlockSpec((ROWS, len(y)), lambda i, k: (i, 0)),
        ],
        out_specs=pallas.BlockSpec((ROWS, DEPTH), lambda i, k: (i, k)),
        compiler_params=triton.CompilerParams(num_warps=4),
        interpret=interpret,
        name="pairwise_attained",
    )(x, y, top, grad)
