from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest
from oracle import BOX_SPEC, ENVS, KEY, SMALL, SPEC, Weights, inverse_model, places, plain, predicted

from etd.bonuses import ICM

PLAIN = ICM(**SMALL)
VARIANTS = {"discrete": (PLAIN, SPEC), "box": (PLAIN, BOX_SPEC), "batch": (replace(PLAIN, norm="batch"), SPEC)}


@pytest.fixture(scope="module")
def states(fill):
    def build(seed):
        return {
            name: fill(lambda key, b=b, spec=spec: b.init(key, spec, ENVS), seed, 0.25)
            for name, (b, spec) in VARIANTS.items()
        }

    return build


@pytest.fixture(scope="module")
def score(quick):
    return quick(lambda states, rs: {name: b.score(states[name], rs[name], KEY) for name, (b, _) in VARIANTS.items()})


@pytest.fixture(scope="module")
def by_name(rollouts, boxed):
    return [{"discrete": a, "box": b, "batch": a} for a, b in zip(rollouts, boxed, strict=True)]


def surprise(weights, r, t, n):
    present, after = (weights.trunk("trunk", obs[t, n]) for obs in (r.obs, r.next_obs))
    return ((predicted(weights, present, r.action[t, n]) - after) ** 2).sum() / 2


def test_bonus_is_half_the_squared_error_of_the_forward_model(score, states, by_name):
    """Of the true successor, also where an episode ends; with BatchNorm the running statistics are read."""
    for k, rounds in enumerate(by_name):
        before = states(k)
        for name, (after, scored) in score(before, rounds).items():
            weights, r = Weights(before[name].learner), plain(rounds[name])
            expected = np.array([surprise(weights, r, t, n) for t, n in places(r)]).reshape(r.done.shape)
            np.testing.assert_allclose(scored.bonus, expected, rtol=2e-5)
            assert np.ptp(expected) > 0.1 * expected.mean()
            jax.tree.map(np.testing.assert_array_equal, after, before[name])


@pytest.mark.parametrize("name", ["discrete", "box"])
def test_loss_shares_inverse_and_forward_model(descent, states, by_name, name):
    """Value, metrics and, by finite differences, the gradient of the embedding, which the forward model moves too."""
    bonus, state, rollout = PLAIN, states(0)[name], by_name[1][name]

    r = plain(rollout)

    def oracle(weights):
        inverse, accuracy = inverse_model(weights, r)
        forward = np.mean([surprise(weights, r, t, n) for t, n in places(r)])
        return 0.8 * inverse + 0.2 * forward, inverse, forward, accuracy

    (loss, metrics), grads = descent(bonus, state.learner, bonus.examples(state, rollout, (), KEY))
    expected, inverse, forward, accuracy = oracle(Weights(state.learner))
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_allclose(metrics["inverse_loss"], inverse, rtol=1e-5)
    np.testing.assert_allclose(metrics["forward_loss"], forward, rtol=1e-5)
    assert ("accuracy" in metrics) == (name == "discrete")
    if name == "discrete":
        assert 0 < accuracy < 1
        np.testing.assert_allclose(metrics["accuracy"], accuracy, rtol=1e-6)

    slopes = []
    for unit in range(SMALL["features"]):
        values = []
        for shift in (1e-5, -1e-5):
            nudged = Weights(state.learner)
            nudged("trunk/layers/2")["bias"][unit] += shift
            values.append(oracle(nudged)[0])
        slopes.append((values[0] - values[1]) / 2e-5)
    assert np.abs(slopes).max() > 0.01
    np.testing.assert_allclose(grads["trunk"]["layers"][2]["bias"], slopes, rtol=1e-3, atol=1e-5)
