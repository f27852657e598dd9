from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest
from oracle import ENVS, KEY, SMALL, SPEC, STEPS, Weights, distillation, places, plain

from etd.bonuses import RND

TRAINING = {"epochs": 10, "minibatch": 15, "learning_rate": 3e-3}
POLICY = RND(**SMALL, **TRAINING)
OWN = replace(POLICY, source="own")
# The paper's "batch" is a LayerNorm here; its variance is a difference of moments, hence the looser tolerance.
VARIANTS = {"policy": (POLICY, 2e-5), "own": (OWN, 2e-5), "layer": (replace(POLICY, norm="batch"), 2e-4)}
FIXED = ("fixed", "fixed_trunk", "fixed_norm")


@pytest.fixture(scope="module")
def states(fill):
    def build(seed):
        return {k: fill(lambda key, b=b: b.init(key, SPEC, ENVS), seed, 0.25) for k, (b, _) in VARIANTS.items()}

    return build


@pytest.fixture(scope="module")
def score(quick):
    return quick(lambda states, r: {name: b.score(states[name], r, KEY) for name, (b, _) in VARIANTS.items()})


@pytest.fixture(scope="module")
def improve(quick):
    """Of one variant; compiled once for each."""
    return {
        name: quick(lambda state, r, b=b: b.improve(state, r, (), KEY))
        for name, b in (("policy", POLICY), ("own", OWN))
    }


def expected(weights, rollout, own):
    read = rollout.obs if own else rollout.features
    return np.array([distillation(weights, read[t, n], own=own) for t, n in places(rollout)]).reshape(STEPS, ENVS)


def test_bonus_is_the_error_of_the_present_state(score, states, rollouts):
    """Whatever ended where: there is no memory."""
    for k, rollout in enumerate(rollouts):
        before = states(k)
        for name, (after, scored) in score(before, rollout).items():
            errors = expected(Weights(before[name].learner), plain(rollout), name == "own")
            np.testing.assert_allclose(scored.bonus, errors, rtol=VARIANTS[name][1])
            assert np.ptp(errors) > 0.1 * errors.mean()
            jax.tree.map(np.testing.assert_array_equal, after, before[name])


@pytest.mark.parametrize("name", ["policy", "own"])
def test_loss_is_the_mean_error_and_moves_the_predictor_alone(descent, states, rollouts, name):
    bonus = VARIANTS[name][0]
    state = states(0)[name]

    (loss, metrics), grads = descent(bonus, state.learner, bonus.examples(state, rollouts[1], (), KEY))
    weights, r = Weights(state.learner), plain(rollouts[1])
    np.testing.assert_allclose(loss, expected(weights, r, name == "own").mean(), rtol=2e-5)
    assert metrics == {}
    for part, grad in grads.items():
        assert all((np.asarray(leaf) == 0).all() == (part in FIXED) for leaf in jax.tree.leaves(grad)), part
    for place in [(0, "kernel", (2, 5)), (1, "bias", (3,))]:  # the predictor's, by finite differences of the oracle
        slope = []
        for sign in (1, -1):
            nudged = Weights(state.learner)
            layer = nudged(f"learned/{place[0]}" + ("" if place[0] else "/linear"))
            layer[place[1]][place[2]] += sign * 1e-5
            slope.append(sign * expected(nudged, r, name == "own").mean() / 2e-5)
        layer = grads["learned"][place[0]]
        layer = layer if place[0] else layer["linear"]
        np.testing.assert_allclose(layer[place[1]][place[2]], sum(slope), rtol=1e-4)


@pytest.mark.parametrize("name", ["policy", "own"])
def test_training_lowers_the_error_and_leaves_the_fixed_network_alone(improve, score, states, rollouts, name):
    state = begun = states(0)[name]
    losses = []
    for _ in range(3):
        state, metrics = improve[name](state, rollouts[0])
        losses.append(float(metrics["loss"]))
    assert losses[2] < 0.7 * losses[0]
    for part, before in begun.learner.params.items():
        after = state.learner.params[part]
        same = [np.array_equal(a, b) for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)]
        assert same == [part in FIXED] * len(same), part
    first, last = (score({**states(0), name: s}, rollouts[0])[name][1].bonus for s in (begun, state))
    assert last.mean() < 0.7 * first.mean()
    unseen = score({**states(0), name: state}, rollouts[2])[name][1].bonus
    if name == "policy":  # the other rollouts' features are all new
        assert unseen.mean() > last.mean()


def test_which_fields_it_reads(states):
    assert POLICY.needs == {"features"}
    assert OWN.needs == frozenset()
    assert set(states(0)["policy"].learner.params) == {"fixed", "learned"}
    assert set(states(0)["own"].learner.params) == {"fixed", "learned", "fixed_trunk", "trunk"}
