"""Three rollouts in a row on which bonuses are checked. Constants: ``from oracle import SPEC, STEPS, ENVS, ...``."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle import ACTIONS, BOX_SPEC, ENVS, FEATURES, KEY, ROUNDS, STEPS


@pytest.fixture(scope="session")
def rollouts(rollout_of):
    """Three consecutive rollouts of the same five environments, with actions, features and logits.

    Ends of episodes, by environment: 0 has an episode over all three rollouts; 1 ends at the first step, two steps in
    a row and in the middle; 2 at both sides of the first border and before the second; 3 always; 4 two in a row
    inside the second rollout and at the very last step. Observations are drawn from seven points, so most episodes
    return to some; where no episode ended, the next rollout begins with the last one's final successor.
    """
    rng = np.random.default_rng(0)
    length = ROUNDS * STEPS
    done = np.zeros((length, ENVS), bool)
    done[15, 0] = True
    done[[0, 2, 3, 9], 1] = True
    done[[STEPS - 1, STEPS, 2 * STEPS - 1], 2] = True
    done[:, 3] = True
    done[[7, 8, length - 1], 4] = True
    terminated = done & (rng.random(done.shape) < 0.7)  # the rest are time-outs
    points = rng.normal(size=(7, 3)).astype(np.float32)
    obs, ends = points[rng.integers(len(points), size=(2, length, ENVS))]
    out = []
    for k in range(ROUNDS):
        rows = slice(k * STEPS, (k + 1) * STEPS)
        final = ends[rows].copy()
        seen_last = ends[rows][-1]
        if k + 1 < ROUNDS:
            seen_last = obs[(k + 1) * STEPS]
            final[-1] = np.where(done[rows][-1][:, None], final[-1], seen_last)
        rollout = rollout_of(obs[rows], done[rows], final, terminated=terminated[rows])
        out.append(
            rollout._replace(
                obs=rollout.obs.at[-1].set(seen_last),  # of the next episode, where the last step ended one
                action=jnp.asarray(rng.integers(ACTIONS, size=(STEPS, ENVS)), jnp.int32),
                features=jnp.asarray(rng.normal(size=(STEPS + 1, ENVS, FEATURES)), jnp.float32),
                logits=jnp.asarray(rng.normal(size=(STEPS, ENVS, ACTIONS)), jnp.float32),
            )
        )
    return out


@pytest.fixture(scope="session")
def boxed(rollouts):
    """The same with actions that are vectors: for ``BOX_SPEC``."""
    rng = np.random.default_rng(1)
    size = (STEPS, ENVS, BOX_SPEC.action.size)
    return [r._replace(action=jnp.asarray(rng.normal(size=size), jnp.float32), logits=None) for r in rollouts]


@pytest.fixture(scope="session")
def descent(quick):
    """((loss, metrics), gradient) of a bonus's model on a batch."""

    def of(bonus, learner, batch, extra=()):
        def loss(params, batch):
            return bonus.loss(replace(learner, params=params).net(), extra, batch, KEY)

        return quick(jax.value_and_grad(loss, has_aux=True))(learner.params, batch)

    return of
