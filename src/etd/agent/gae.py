"""Generalised advantage estimation."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from etd.core.types import Array


def advantages(
    reward: Array, value: Array, done: Array, discount: float, gae_lambda: float, final_value: Array | None = None
) -> Array:
    """A_t = delta_t + gamma lambda (1 - done_t) A_{t+1},  delta_t = r_t + gamma V_{t+1} (1 - done_t) - V_t.  [T, N]

    reward, done [T, N]; value [T+1, N]. ``final_value`` [T, N] is the value of the last state of a timed-out episode
    (zero elsewhere), which is bootstrapped. Without it, a time-out counts as a termination.
    """
    keep = 1.0 - done
    delta = reward + discount * value[1:] * keep - value[:-1]
    if final_value is not None:
        delta = delta + discount * final_value

    def back(later: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        delta, keep = now
        advantage = delta + discount * gae_lambda * keep * later
        return advantage, advantage

    return jax.lax.scan(back, jnp.zeros_like(delta[0]), (delta, keep), reverse=True, unroll=16)[1]
