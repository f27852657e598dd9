"""Running mean and variance with exponential forgetting, as the paper standardises bonuses and advantages."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from etd.core.types import Array


class Moments(NamedTuple):
    """Starts at mean 0, variance 1 and, on purpose, without bias correction: after k updates the start still weighs
    momentum**k, which damps the first rollouts as in the authors' code."""

    mean: Array
    var: Array

    @classmethod
    def start(cls, shape: tuple[int, ...] = ()) -> Moments:
        """``shape`` is that of the mean; the variance is always one number."""
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
