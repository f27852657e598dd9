"""For bonuses that compare a state with its episode's past: rollouts without returns, and the past kept in lists."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from oracle import ROUNDS, STEPS


def drifting(rollouts):
    """The same rollouts, every moment displaced by a vector of its own: no state returns, ends stay where they are."""
    shift = jnp.asarray(np.random.default_rng(2).normal(size=(ROUNDS * STEPS + 1, 1, 3)), jnp.float32) / 2
    out = []
    for k, rollout in enumerate(rollouts):
        now = shift[k * STEPS : (k + 1) * STEPS + 1]
        step = rollout.step._replace(next_obs=rollout.next_obs + now[1:])
        out.append(rollout._replace(obs=rollout.obs + now, step=step))
    return out


def comparisons(rollout, pasts, embed):
    """(t, n, the past of environment n's episode, its new entry) of every step; the lists ``pasts`` [N] move on."""
    obs, next_obs, done = (np.asarray(x) for x in (rollout.obs, rollout.next_obs, rollout.done))
    for n, past in enumerate(pasts):
        for t in range(STEPS):
            if not past:
                past.append(embed(obs[t, n]))
            new = embed(next_obs[t, n])
            yield t, n, past, new
            past.append(new)
            if done[t, n]:
                past.clear()


def memory_holds(memory, pasts, rtol=1e-5, atol=1e-5):
    """Every environment's memory is its past, oldest first."""
    np.testing.assert_array_equal(memory.filled, [len(past) for past in pasts])
    for values, past in zip(np.asarray(memory.values), pasts, strict=True):
        if past:
            np.testing.assert_allclose(values[: len(past)], past, rtol=rtol, atol=atol)
