"""Distances between embeddings, the contrastive losses that train them, and the aggregates that turn them into a bonus.

A distance maps x [A, D], y [B, D] to d(x_a -> y_b) [A, B]. The energy gives the logits of InfoNCE:
f(x, y) = c(y) - d(x, y), where the potential c is zero except for "mrn+potential".
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.lax import optimization_barrier

from etd.core.types import Array

EPSILON = 1e-8
"""Added under the square root, so d(s, s) = 1e-4 and its gradient is finite."""


def squared(x: Array, y: Array) -> Array:
    """sum_i (x_i - y_i)^2 from exact differences."""
    return _fold(lambda total, diff: total + diff * diff, x, y)


@jax.custom_vjp
def euclidean(x: Array, y: Array) -> Array:
    """sqrt(sum_i (x_i - y_i)^2 + 1e-8), from exact differences: a revisited state gets exactly the minimum, which the
    matrix-product identity would miss because of rounding."""
    return jnp.sqrt(squared(x, y) + EPSILON)


def _euclidean_forward(x: Array, y: Array) -> tuple[Array, tuple[Array, Array, Array]]:
    d = euclidean(x, y)
    return d, (x, y, d)


def _euclidean_backward(saved: tuple[Array, Array, Array], grad: Array) -> tuple[Array, Array]:
    """Sum over pairs of g (x - y) / d, as matrix products.

    Grids repeat observations, so many pairs are at the minimum distance, where 1/d is 10,000 and the products would
    cancel to pure rounding noise. Equal embeddings have zero gradient: such pairs are left out.
    """
    x, y, d = saved
    pull = jnp.where(d * d > 2 * EPSILON, grad / d, 0)
    return x * pull.sum(1)[:, None] - pull @ y, y * pull.sum(0)[:, None] - pull.T @ x


euclidean.defvjp(_euclidean_forward, _euclidean_backward)


@jax.custom_vjp
def ascent(x: Array, y: Array) -> Array:
    """max_i relu(x_i - y_i): the asymmetric half of MRN."""
    return _fold(jnp.maximum, x, y)


def _ascent_forward(x: Array, y: Array) -> tuple[Array, tuple[Array, Array, Array]]:
    top = ascent(x, y)
    return top, (x, y, top)


def _ascent_backward(saved: tuple[Array, Array, Array], grad: Array) -> tuple[Array, Array]:
    """The gradient goes to the coordinate that attains the maximum, if that is positive."""
    x, y, top = saved
    grad = jnp.where(top > 0, grad, 0)

    # Two fused reductions on an accelerator. These are slow on a CPU: the loss and gradient of 512 pairs took 135 ms
    # or more with them, and 20 to 31 ms with a loop over coordinates.
    grads = jax.lax.platform_dependent(x.T, y.T, top, grad, cpu=_pulls_one_by_one, default=_pulls_at_once)
    return grads[0].T, grads[1].T


def _pulls_at_once(x: Array, y: Array, top: Array, grad: Array) -> tuple[Array, Array]:
    """Gradients [D, A], [D, B] from x [D, A], y [D, B] and what stands between them, [A, B]."""

    def pull(x: Array) -> Array:
        return jnp.where(x[:, :, None] - y[:, None, :] == top, grad, 0)

    # Twice, because the compiler would keep what both sums read, which is 32 times as large as the distances.
    return pull(x).sum(2), -pull(optimization_barrier(x)).sum(1)


def _pulls_one_by_one(x: Array, y: Array, top: Array, grad: Array) -> tuple[Array, Array]:
    """The same in a loop over coordinates."""

    def one(_: None, columns: tuple[Array, Array]) -> tuple[None, tuple[Array, Array]]:
        a, b = columns
        pull = jnp.where(a[:, None] - b == top, grad, 0)
        return None, (pull.sum(1), -pull.sum(0))

    return jax.lax.scan(one, None, (x, y))[1]


ascent.defvjp(_ascent_forward, _ascent_backward)


def _fold(combine: Callable[[Array, Array], Array], x: Array, y: Array) -> Array:
    """combine(... combine(0, x_0 - y_0) ..., x_D - y_D) over [A, B]; unrolled, so XLA fuses it into one loop."""
    total = jnp.zeros((x.shape[0], y.shape[0]), x.dtype)
    columns = jax.lax.platform_dependent(y.T, cpu=_spaced, default=lambda columns: columns)
    for a, b in zip(x.T, columns, strict=True):
        total = combine(total, a[:, None] - b)
    return total


def _spaced(columns: Array) -> Array:
    """The same [D, B], its rows an odd number of cache lines apart. At a distance of 512 floats they all fall into the
    same few places of a CPU's cache and evict each other: MRN between 512 pairs took 2.6 ms on one core, and 1.6 ms so.
    """
    count = columns.shape[1]
    return optimization_barrier(jnp.pad(columns, ((0, 0), (0, (16 - count) % 32))))[:, :count]


def mrn(x: Array, y: Array) -> Array:
    """The metric residual network: max_{i < D/2} relu(x_i - y_i) + ||x - y|| over the other half. A quasimetric."""
    half = x.shape[-1] // 2
    return ascent(x[:, :half], y[:, :half]) + euclidean(x[:, half:], y[:, half:])


def mrn_symmetric(x: Array, y: Array) -> Array:
    """MRN without its asymmetric half."""
    half = x.shape[-1] // 2
    return euclidean(x[:, half:], y[:, half:])


def cosine(x: Array, y: Array) -> Array:
    """Minus the cosine of the angle; not a metric."""

    def unit(z: Array) -> Array:
        return z * jax.lax.rsqrt((z * z).sum(-1, keepdims=True) + EPSILON)

    return -unit(x) @ unit(y).T


def dot(x: Array, y: Array) -> Array:
    """Minus the inner product; not a metric."""
    return -x @ y.T


DISTANCES: dict[str, Callable[[Array, Array], Array]] = {
    "mrn+potential": mrn,
    "mrn": mrn,
    "l2": euclidean,
    "cos": cosine,
    "dot": dot,
}


def diagonal(table: Array) -> Array:
    """Its entries (i, i), by a mask: a GPU fuses that with what is done to the rows, but not a gather or its gradient,
    which scatters."""
    return jnp.where(jnp.eye(len(table), dtype=bool), table, 0).sum(1)


def forward(logits: Array) -> Array:
    """-E log softmax_j f(x_i, y_j) at j = i: which future belongs to this state?"""
    return _contrast(logits, 1)


def backward(logits: Array) -> Array:
    """-E log softmax_i f(x_i, y_j) at i = j: which state belongs to this future?"""
    return _contrast(logits, 0)


def _contrast(logits: Array, axis: int) -> Array:
    """By axis and not by transposing, which takes a CPU as long as all the rest of the loss."""
    return (jax.nn.logsumexp(logits, axis) - diagonal(logits)).mean()


def symmetric(logits: Array) -> Array:
    """The mean of both directions."""
    return (forward(logits) + backward(logits)) / 2


LOSSES: dict[str, Callable[[Array], Array]] = {"symmetric": symmetric, "forward": forward, "backward": backward}


def least(distance: Array, stored: Array, count: int) -> Array:
    """The ``count`` smallest distances to stored entries, ascending; +inf beyond what is stored. [B, count]"""
    masked = jnp.where(stored, distance, jnp.inf).T
    return -jax.lax.top_k(-masked, min(count, masked.shape[1]))[0]


def minimum(distance: Array, stored: Array) -> Array:
    """The distance to the nearest stored entry. Like all aggregates: distance, stored [A, B] to [B]."""
    return jnp.where(stored, distance, jnp.inf).min(0)


def quantile10(distance: Array, stored: Array) -> Array:
    """The 0.1-quantile over stored entries, linearly interpolated."""
    ordered = jnp.sort(jnp.where(stored, distance, jnp.inf), 0)
    place = 0.1 * (stored.sum(0) - 1)
    below = jnp.floor(place).astype(jnp.int32)
    low = jnp.take_along_axis(ordered, below[None], 0)[0]
    high = jnp.take_along_axis(ordered, jnp.ceil(place).astype(jnp.int32)[None], 0)[0]
    return low + (place - below) * (high - low)


def knn10(distance: Array, stored: Array) -> Array:
    """The distance to the 10th nearest stored entry, or to the farthest if there are fewer."""
    nearest = least(distance, stored, 10)
    return jnp.where(jnp.isfinite(nearest), nearest, -jnp.inf).max(1)


def knn10avg(distance: Array, stored: Array) -> Array:
    """The mean distance to the 10 nearest stored entries, or to all if there are fewer."""
    nearest = least(distance, stored, 10)
    found = jnp.isfinite(nearest)
    return jnp.where(found, nearest, 0).sum(1) / found.sum(1)


AGGREGATES: dict[str, Callable[[Array, Array], Array]] = {
    "min": minimum,
    "quantile10": quantile10,
    "knn10": knn10,
    "knn10avg": knn10avg,
}
