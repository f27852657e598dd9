"""How the parts of an iteration are joined: what is scored by which model, what is carried over, when a seed stops."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("gymnasium")

from tests.corridor import Corridor

from etd.agent.ppo import PPO
from etd.bonuses import ETD
from etd.core.keys import named
from etd.envs import autoreset
from etd.training import learn
from etd.training.collect import collect
from etd.training.experiment import Experiment

ENV = Corridor()
TINY = Experiment(
    bonus=ETD(minibatch=16, epochs=1, features=8, latent=8, embedding=8, norm="layer"),
    ppo=PPO(minibatch=16, epochs=1, features=8, latent=8, norm="layer"),
    num_envs=4,
    rollout_steps=8,
)


@pytest.fixture(scope="module")
def state(quick):
    return quick(partial(learn.init, TINY, ENV))(jax.random.key(3))


@pytest.fixture(scope="module")
def acted(quick, state):
    """The environments, recurrent states and rollout of the first iteration."""

    @quick
    def act(state):
        pool = autoreset.generate(ENV, state.key, state.envs, autoreset.pool_size(ENV.spec, 8))
        key = learn.iteration_key(state)
        return collect(ENV, state.learner.policy, state.envs, state.hidden, pool, 8, key, TINY.bonus.needs)

    return act(state)


@pytest.fixture(scope="module")
def update(quick, acted):
    """Learning from that rollout, from any state."""
    work = quick(partial(learn.learn_from_rollout, TINY, ENV.spec))
    return lambda state: work(state, *acted)


def test_a_rollout_is_scored_before_the_model_learns_from_it(quick, state, acted, update):
    score = quick(lambda bonus, rollout, key: TINY.bonus.score(bonus, rollout, key)[1].bonus)
    key = named(learn.iteration_key(state), "score")
    before = score(state.learner.bonus, acted[2], key)
    after, metrics = update(state)
    np.testing.assert_allclose(metrics["bonus_mean"], before.mean(), rtol=1e-4)
    trained = state.learner.bonus._replace(learner=after.learner.bonus.learner)
    assert abs(score(trained, acted[2], key).mean() / before.mean() - 1) > 1e-3


def test_the_moments_of_the_bonus_are_carried_over(state, update):
    for _ in range(2):
        state, metrics = update(state)
        np.testing.assert_allclose(metrics["bonus_scale"] ** 2, state.learner.bonus_moments.var, rtol=1e-5)
    assert float(state.learner.bonus_moments.var) != 1


def test_the_bonus_reaches_the_policy(state, update):
    """With another model the same rollout teaches another policy; the model itself is no part of it."""
    other = jax.tree.map(lambda leaf: 1.5 * leaf, state.learner.bonus.learner.params)
    bonus = state.learner.bonus._replace(learner=replace(state.learner.bonus.learner, params=other))
    one, two = update(state)[0], update(state._replace(learner=state.learner._replace(bonus=bonus)))[0]
    moved = jax.tree.map(lambda a, b: not np.array_equal(a, b), one.learner.policy.params, two.learner.policy.params)
    assert any(jax.tree.leaves(moved))


def test_a_dead_seed_stays_dead(state, update):
    """Sound as its weights are."""
    after, metrics = update(state._replace(alive=jnp.bool_(False)))
    assert not metrics["alive"]
    assert int(after.iteration) == 1
    unmoved = (after.learner, after.envs, after.hidden), (state.learner, state.envs, state.hidden)
    jax.tree.map(np.testing.assert_array_equal, *unmoved)


def test_a_model_gone_bad_freezes_its_seed(state, update):
    """NaN in the model's own optimiser, while the policy's loss is sound."""
    learner = state.learner.bonus.learner
    bad = jax.tree.map(
        lambda leaf: jnp.full_like(leaf, jnp.nan) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, learner.opt
    )
    bonus = state.learner.bonus._replace(learner=replace(learner, opt=bad))
    _, metrics = update(state._replace(learner=state.learner._replace(bonus=bonus)))
    assert np.isfinite(metrics["ppo_loss"])
    assert not metrics["alive"]


def test_every_iteration_has_its_own_key(state):
    keys = [learn.iteration_key(state._replace(iteration=jnp.int32(k))) for k in (0, 1)]
    assert not np.array_equal(*map(jax.random.key_data, keys))
