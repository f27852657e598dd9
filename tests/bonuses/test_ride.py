from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest
from oracle import (
    BOX_SPEC,
    ENVS,
    KEY,
    LONGEST,
    SMALL,
    SPEC,
    Visits,
    Weights,
    inverse_model,
    places,
    plain,
    predicted,
)

from etd.bonuses import RIDE

BONUS = RIDE(**SMALL)
SPECS = {"discrete": SPEC, "box": BOX_SPEC}


@pytest.fixture(scope="module")
def states(fill):
    def build(name, seed):
        return fill(lambda key: BONUS.init(key, SPECS[name], ENVS), seed, 0.25)

    return build


def test_bonus_is_the_change_over_the_root_of_visits(quick, states, rollouts):
    score = quick(lambda state, rollout: BONUS.score(state, rollout, KEY))
    state = states("discrete", 0)
    past = [Visits() for _ in range(ENVS)]
    for k, rollout in enumerate(rollouts):
        state = state._replace(learner=states("discrete", k).learner)
        weights, r = Weights(state.learner), plain(rollout)
        after, scored = score(state, rollout)
        for t, n in places(r):
            count = past[n].step(r.obs[t, n], r.next_obs[t, n], r.done[t, n])
            change = weights.trunk("trunk", r.next_obs[t, n]) - weights.trunk("trunk", r.obs[t, n])
            expected = np.sqrt((change**2).sum()) / np.sqrt(count)
            np.testing.assert_allclose(scored.bonus[t, n], expected, rtol=2e-5, atol=1e-6)
        jax.tree.map(np.testing.assert_array_equal, after.learner, state.learner)
        filled = [len(one.past) for one in past]
        np.testing.assert_array_equal(after.memory.filled, filled)
        np.testing.assert_allclose(scored.metrics["memory_filled"], max(filled) / (LONGEST + 1), rtol=1e-6)
        state = after


@pytest.mark.parametrize("name", SPECS)
def test_loss_weighs_the_norm_of_the_forward_error(descent, states, rollouts, boxed, name):
    rollout, state = {"discrete": rollouts, "box": boxed}[name][1], states(name, 0)
    weights, r = Weights(state.learner), plain(rollout)
    (loss, metrics), _ = descent(BONUS, state.learner, BONUS.examples(state, rollout, (), KEY))
    inverse, accuracy = inverse_model(weights, r)
    norms = []
    for t, n in places(r):
        present, after = (weights.trunk("trunk", obs[t, n]) for obs in (r.obs, r.next_obs))
        norms.append(np.linalg.norm(predicted(weights, present, r.action[t, n]) - after))
    np.testing.assert_allclose(loss, 0.1 * inverse + 10 * np.mean(norms), rtol=1e-5)
    np.testing.assert_allclose(metrics["inverse_loss"], inverse, rtol=1e-5)
    np.testing.assert_allclose(metrics["forward_loss"], np.mean(norms), rtol=1e-5)
    assert ("accuracy" in metrics) == (name == "discrete")
    if name == "discrete":
        np.testing.assert_allclose(metrics["accuracy"], accuracy, rtol=1e-6)


def test_gradient_is_finite_where_nothing_is_foretold_wrong(descent, states, rollouts):
    """All weights zero: every error is zero, where a norm has no slope."""
    state = states("discrete", 0)
    learner = replace(state.learner, params=jax.tree.map(np.zeros_like, state.learner.params))
    (loss, metrics), grads = descent(BONUS, learner, BONUS.examples(state, rollouts[0], (), KEY))
    np.testing.assert_allclose(metrics["forward_loss"], 1e-4, rtol=1e-5)
    np.testing.assert_allclose(loss, 0.1 * np.log(3) + 1e-3, rtol=1e-5)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))
