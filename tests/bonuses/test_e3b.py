from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle import BOX_SPEC, ENVS, FEATURES, KEY, SMALL, SPEC, STEPS, Weights, inverse_model, places, plain

from etd.bonuses import E3B
from etd.bonuses.representations import embed

BONUS = E3B(**SMALL)
RIDGE = 0.1


@pytest.fixture(scope="module")
def states(fill):
    def build(seed, spec=SPEC):
        state = fill(lambda key: BONUS.init(key, spec, ENVS), seed, 0.25)
        return state._replace(memory=jnp.tile(jnp.eye(FEATURES) / RIDGE, (ENVS, 1, 1)))

    return build


@pytest.fixture(scope="module")
def score(quick):
    return quick(lambda state, rollout: BONUS.score(state, rollout, KEY))


def inverted(past):
    """The matrix that a row is measured with, from all rows of its episode so far."""
    return np.linalg.inv(sum((np.outer(phi, phi) for phi in past), RIDGE * np.eye(FEATURES)))


def test_bonus_is_the_length_under_the_episodes_ellipse(score, states, rollouts):
    """Against the inverse of the sum itself. Rank-one updates in float32 lose a digit against it: hence 1e-4."""
    state = states(0)
    past = [[] for _ in range(ENVS)]
    for k, rollout in enumerate(rollouts):
        state = state._replace(learner=states(k).learner)
        weights, r = Weights(state.learner), plain(rollout)
        after, scored = score(state, rollout)
        for t, n in places(r):
            phi = weights.trunk("trunk", r.obs[t, n])
            np.testing.assert_allclose(scored.bonus[t, n], phi @ inverted(past[n]) @ phi, rtol=1e-4)
            past[n].append(phi)
            if r.done[t, n]:
                past[n] = []
        jax.tree.map(np.testing.assert_array_equal, after.learner, state.learner)
        for n in range(ENVS):
            np.testing.assert_allclose(after.memory[n], inverted(past[n]), rtol=1e-4, atol=1e-4)
        state = after
    assert {len(rows) for rows in past} >= {0, 2, STEPS}


def test_begins_every_environment_without_states(quick):
    state = quick(lambda key: BONUS.init(key, SPEC, ENVS))(KEY)
    np.testing.assert_allclose(state.memory, [inverted([])] * ENVS, rtol=1e-6)


def endless(rollouts, length):
    """The rollouts over and over, as one episode."""
    for k in range(length // STEPS):
        rollout = rollouts[k % len(rollouts)]
        never = jnp.zeros_like(rollout.done)
        yield rollout._replace(step=rollout.step._replace(terminated=never, truncated=never))


def lengths(total, phi):
    """Bonuses [T, N] of embeddings [T, N, D], by a sum [N, D, D] that takes them in."""
    out = np.zeros(phi.shape[:2])
    for t, n in np.ndindex(out.shape):
        out[t, n] = phi[t, n] @ np.linalg.solve(total[n], phi[t, n])
        total[n] += np.outer(phi[t, n], phi[t, n])
    return out


def test_long_episode_stays_exact(score, states, rollouts):
    """300 updates without an end: rounding does not add up."""
    state = states(0)
    weights = Weights(state.learner)
    total = np.tile(RIDGE * np.eye(FEATURES), (ENVS, 1, 1))
    for rollout in endless(rollouts, 300):
        state, scored = score(state, rollout)
        np.testing.assert_allclose(scored.bonus, lengths(total, weights.trunk("trunk", rollout.obs[:-1])), rtol=5e-4)


@pytest.mark.gpu
def test_long_episode_at_low_precision(fill, rollouts):
    """Seven states over and over: the recursion must not be run in tensorfloat32, or it turns negative.

    The embeddings are as that precision leaves them; they are long, as after BatchNorm.
    """
    bonus = E3B(**{**SMALL, "features": 64})
    state = fill(lambda key: bonus.init(key, SPEC, ENVS), 0, 0.3)
    state = state._replace(memory=jnp.tile(jnp.eye(64) / RIDGE, (ENVS, 1, 1)))
    total = np.tile(RIDGE * np.eye(64), (ENVS, 1, 1))

    @jax.jit
    def run(state, rollout):
        return *bonus.score(state, rollout, KEY), embed(state.learner.net().trunk, rollout.obs[:-1])

    with jax.default_matmul_precision("tensorfloat32"):
        for rollout in endless(rollouts, 300):
            state, scored, phi = run(state, rollout)
            np.testing.assert_allclose(scored.bonus, lengths(total, np.asarray(phi, np.float64)), rtol=0.05)


@pytest.mark.parametrize("name", ["discrete", "box"])
def test_loss_is_the_inverse_models(quick, states, rollouts, boxed, name):
    rollout, spec = {"discrete": (rollouts[1], SPEC), "box": (boxed[1], BOX_SPEC)}[name]
    state = states(0, spec)

    @quick
    def run(params, rollout):
        net = replace(state.learner, params=params).net()
        return BONUS.loss(net, (), BONUS.examples(state, rollout, (), KEY), KEY)

    loss, metrics = run(state.learner.params, rollout)
    expected, accuracy = inverse_model(Weights(state.learner), plain(rollout))
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert set(metrics) == ({"accuracy"} if name == "discrete" else set())
    if name == "discrete":
        assert 0 < accuracy < 1
        np.testing.assert_allclose(metrics["accuracy"], accuracy, rtol=1e-6)
