from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from episodes import comparisons, drifting, memory_holds
from oracle import ACTIONS, BOX_SPEC, ENVS, KEY, SMALL, SPEC, STEPS, Weights, softmax

from etd.bonuses import Inverse
from etd.bonuses.representations import Move

BONUS = Inverse(**SMALL)


@pytest.fixture(scope="module")
def score(quick):
    return quick(lambda state, rollout: BONUS.score(state, rollout, KEY))


@pytest.fixture(scope="module")
def state(fill):
    return lambda seed, spec=SPEC: fill(lambda key: BONUS.init(key, spec, ENVS), seed)


def test_bonus_is_the_distance_to_the_nearest_embedding(score, state, rollouts):
    """Other weights in every rollout: memory keeps the embeddings of the time."""
    current, pasts = state(0), [[] for _ in range(ENVS)]
    for k, rollout in enumerate(drifting(rollouts)):
        current = current._replace(learner=state(k).learner)
        weights = Weights(current.learner)
        current, scored = score(current, rollout)
        expected = np.zeros((STEPS, ENVS))
        for t, n, past, new in comparisons(rollout, pasts, lambda obs, w=weights: w.trunk("trunk", obs)):
            expected[t, n] = min(np.linalg.norm(old - new) for old in past)
        np.testing.assert_allclose(scored.bonus, expected, rtol=1e-5, atol=1e-5)
        memory_holds(current.memory, pasts)


def test_a_state_that_returns_is_worth_exactly_nothing(score, state, rollouts):
    """Environment 0 meets seven points in eighteen steps."""
    current, pasts, returns = state(0), [[] for _ in range(ENVS)], 0
    for rollout in rollouts:
        current, scored = score(current, rollout)
        for t, n, past, new in comparisons(rollout, pasts, lambda obs: obs):
            again = any((old == new).all() for old in past)
            assert (scored.bonus[t, n] == 0) == again
            returns += again
    assert returns > 10


def test_loss_is_the_cross_entropy_of_the_action(quick, state, rng):
    learner = state(0).learner
    obs, next_obs = rng.normal(size=(2, 9, 3)).astype(np.float32)
    action = rng.integers(ACTIONS, size=9)
    loss, metrics = quick(lambda batch: BONUS.loss(learner.net(), (), batch, KEY))(
        Move(obs, jnp.asarray(action), next_obs)
    )
    guesses = []
    weights = Weights(learner)
    for one, after in zip(obs, next_obs, strict=True):
        both = np.concatenate([weights.trunk("trunk", one), weights.trunk("trunk", after)])
        guesses.append(softmax(weights.linear("guess", weights.block("hidden", both))))
    chosen = [guess[a] for guess, a in zip(guesses, action, strict=True)]
    np.testing.assert_allclose(loss, -np.log(chosen).mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["accuracy"], (np.argmax(guesses, 1) == action).mean(), rtol=1e-6)


def test_loss_of_vector_actions_is_their_squared_error(quick, state, rng):
    learner = state(0, BOX_SPEC).learner
    obs, next_obs = rng.normal(size=(2, 9, 3)).astype(np.float32)
    action = rng.normal(size=(9, 2)).astype(np.float32)
    loss, _ = quick(lambda batch: BONUS.loss(learner.net(), (), batch, KEY))(Move(obs, action, next_obs))
    weights, total = Weights(learner), 0.0
    for one, a, after in zip(obs, action, next_obs, strict=True):
        both = np.concatenate([weights.trunk("trunk", one), weights.trunk("trunk", after)])
        total += ((weights.linear("guess", weights.block("hidden", both)) - a) ** 2).sum()
    np.testing.assert_allclose(loss, total / 9, rtol=1e-5)
