"""Running mean and variance: exponentially weighted, as the paper standardises bonuses and advantages, or over all
samples so far."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from etd.core.types import Array


class Moments(NamedTuple):
    """Starts at mean 0 and variance 1, deliberately without bias correction: after k updates the initial values still
    weigh momentum**k, which damps the first rollouts as in the authors' code."""

    mean: Array
    var: Array

    @classmethod
    def start(cls, shape: tuple[int, ...] = ()) -> Moments:
        """``shape`` is the shape of the mean; the variance is always a scalar."""
        return cls(jnp.zeros(shape), jnp.ones(()))

    def update(self, x: Array, momentum: float) -> Moments:
        """m <- momentum m + (1 - momentum) mean(x);  v likewise from mean((x - m)^2), with the new m.

        A mean of shape [N] averages ``x`` [T, N] over time only.
        """
        batch_mean = x.mean(tuple(range(x.ndim - self.mean.ndim)))
        mean = momentum * self.mean + (1 - momentum) * batch_mean
        var = momentum * self.var + (1 - momentum) * jnp.square(x - mean).mean()
        return Moments(mean, var)

    def standardise(self, x: Array) -> Array:
        return (x - self.mean) / (jnp.sqrt(self.var) + 1e-5)


class RunningMoments(NamedTuple):
    """Mean and variance of all samples so far, equally weighted."""

    samples: Array
    mean: Array
    spread: Array
    """sum of squared deviations from the mean"""

    @classmethod
    def start(cls) -> RunningMoments:
        return cls(*jnp.zeros(3))

    def scan(self, x: Array) -> tuple[RunningMoments, RunningMoments]:
        """Add ``x`` [T, N] step by step: the final moments, and the moments [T] after each step (that step
        included)."""
        mean = x.mean(1)
        steps = RunningMoments(jnp.full_like(mean, x.shape[1]), mean, jnp.square(x - mean[:, None]).sum(1))
        rows = jax.tree.map(lambda now, later: jnp.concatenate([now[None], later]), self, steps)
        rows = jax.lax.associative_scan(_joined, rows)
        return jax.tree.map(lambda leaf: leaf[-1], rows), jax.tree.map(lambda leaf: leaf[1:], rows)

    def standardise(self, x: Array) -> Array:
        return (x - self.mean) / (jnp.sqrt(self.spread / jnp.maximum(self.samples, 1)) + 1e-5)


def _joined(a: RunningMoments, b: RunningMoments) -> RunningMoments:
    samples = a.samples + b.samples
    share = b.samples / jnp.maximum(samples, 1)
    apart = b.mean - a.mean
    return RunningMoments(samples, a.mean + apart * share, a.spread + b.spread + apart * apart * a.samples * share)
