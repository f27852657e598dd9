from __future__ import annotations

import jax
import numpy as np
import pytest
from oracle import BOX_SPEC, ENVS, KEY, LONGEST, SMALL, SPEC, Visits, Weights, places, plain, softmax

from etd.bonuses import AGAC

BONUS = AGAC(**SMALL, count=0.7)


@pytest.fixture(scope="module")
def states(fill):
    return lambda seed: fill(lambda key: BONUS.init(key, SPEC, ENVS), seed, 0.25)


@pytest.fixture(scope="module")
def score(quick):
    return quick(lambda state, rollout: BONUS.score(state, rollout, KEY))


def divergence(logits, other):
    p, q = softmax(np.asarray(logits, np.float64)), softmax(np.asarray(other, np.float64))
    return sum(a * np.log(a / b) for a, b in zip(p, q, strict=True))


def imitated(weights, obs):
    return weights.linear("logits", weights.block("hidden", weights.trunk("trunk", obs)))


def test_bonus_is_divergence_and_count(score, states, rollouts):
    state = states(0)
    past = [Visits() for _ in range(ENVS)]
    for k, rollout in enumerate(rollouts):
        state = state._replace(learner=states(k).learner)
        weights, r = Weights(state.learner), plain(rollout)
        after, scored = score(state, rollout)
        surprises = []
        for t, n in places(r):
            count = past[n].step(r.obs[t, n], r.next_obs[t, n], r.done[t, n])
            surprises.append(divergence(r.logits[t, n], imitated(weights, r.obs[t, n])))
            expected = surprises[-1] + 0.7 / np.sqrt(count)
            np.testing.assert_allclose(scored.bonus[t, n], expected, rtol=1e-5)
        np.testing.assert_allclose(scored.metrics["divergence"], np.mean(surprises), rtol=1e-5)
        assert np.ptp(surprises) > 0.1
        jax.tree.map(np.testing.assert_array_equal, after.learner, state.learner)
        filled = [len(one.past) for one in past]
        np.testing.assert_array_equal(after.memory.filled, filled)
        np.testing.assert_allclose(scored.metrics["memory_filled"], max(filled) / (LONGEST + 1), rtol=1e-6)
        state = after


def test_loss_draws_the_adversary_to_the_policy(descent, states, rollouts):
    """Its gradient by the adversary's logits is that of a cross-entropy: mean of q - p."""
    state = states(0)

    (loss, metrics), grads = descent(BONUS, state.learner, BONUS.examples(state, rollouts[1], (), KEY))
    weights, r = Weights(state.learner), plain(rollouts[1])
    rows = [(r.logits[t, n], imitated(weights, r.obs[t, n])) for t, n in places(r)]
    np.testing.assert_allclose(loss, np.mean([divergence(*row) for row in rows]), rtol=1e-5)
    agreed = np.mean([a.argmax() == b.argmax() for a, b in rows])
    assert 0 < agreed < 1
    np.testing.assert_allclose(metrics["accuracy"], agreed, rtol=1e-6)
    pull = np.mean([softmax(b) - softmax(a.astype(np.float64)) for a, b in rows], 0)
    np.testing.assert_allclose(grads["logits"]["bias"], pull, rtol=1e-4, atol=1e-6)


def test_adversary_starts_uniform(quick, score, rollouts):
    """So that the first divergence is log(actions) less the policy's entropy."""
    state = quick(lambda key: BONUS.init(key, SPEC, ENVS))(KEY)
    _, scored = score(state, rollouts[0])
    p = np.array([softmax(logits) for logits in np.asarray(rollouts[0].logits, np.float64).reshape(-1, 3)])
    np.testing.assert_allclose(scored.metrics["divergence"], np.log(3) + (p * np.log(p)).sum(1).mean(), rtol=1e-5)


def test_refuses_actions_that_are_vectors():
    assert "vectors" in BONUS.refusal(BOX_SPEC)
    assert BONUS.refusal(SPEC) == ""
    assert BONUS.needs == {"logits"}
