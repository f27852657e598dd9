from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from etd.agent.ppo import PPO
from etd.core.types import Box, EnvSpec, Transition
from etd.envs import autoreset
from etd.training.collect import collect, first_hidden

STEPS, ENVS, LOW, HIGH = 7, 3, -0.5, 0.25


@dataclass(frozen=True)
class Echo:
    """Shows the action it received; an episode takes three steps."""

    @property
    def spec(self):
        return EnvSpec("echo", (2,), "float32", 1.0, Box(2, LOW, HIGH), max_steps=3, shortest=3, kind="vector")

    def reset(self, key):
        return jnp.zeros((), jnp.int32), jax.random.uniform(key, (2,), minval=2.0, maxval=3.0)

    def step(self, time, action, key):
        no = jnp.zeros((), bool)
        return time + 1, Transition(action, action.sum(), no, time == 2, jnp.zeros((), jnp.uint32))


@dataclass(frozen=True)
class Dice(Echo):
    """Shows what its steps draw."""

    def step(self, time, action, key):
        time, transition = super().step(time, action, key)
        return time, transition._replace(next_obs=jax.random.uniform(key, (2,)))


def test_every_step_of_every_environment_draws_its_own(quick, fill):
    env, ppo = Dice(), PPO(features=5, latent=6, norm="none")
    learner = fill(lambda key: ppo.init(key, env.spec))

    @quick
    def run(learner, key):
        envs = autoreset.begin(env, key, ENVS)
        pool = autoreset.generate(env, key, envs, autoreset.pool_size(env.spec, STEPS))
        return collect(env, learner, envs, first_hidden(ppo, ENVS), pool, STEPS, key, frozenset())[2].next_obs

    drawn = np.asarray(run(learner, jax.random.key(0)))
    assert len(np.unique(drawn)) == drawn.size == STEPS * ENVS * 2


@pytest.fixture(scope="module")
def collected(plainly, fill):
    env, ppo = Echo(), PPO(features=5, latent=6, norm="batch")
    learner = fill(lambda key: ppo.init(key, env.spec))
    hidden = first_hidden(ppo, ENVS) + 0.5

    @plainly
    def run(learner, key):
        envs = autoreset.begin(env, key, ENVS)
        pool = autoreset.generate(env, key, envs, autoreset.pool_size(env.spec, STEPS))
        results = []
        for greedy, keep in ((False, frozenset({"features", "logits"})), (True, frozenset())):
            after, last, rollout = collect(env, learner, envs, hidden, pool, STEPS, key, keep, greedy)
            said = jax.vmap(learner.net())(rollout.obs, rollout.hidden)
            log_prob = jax.vmap(lambda policy, action: policy.log_prob(action))(
                jax.tree.map(lambda leaf: leaf[:-1], said.policy), rollout.action
            )
            results.append((after, last, rollout, said, log_prob))
        return results

    return jax.tree.map(np.asarray, run(learner, jax.random.key(0))), hidden


def test_rollout_holds_what_the_policy_saw_and_said(collected):
    ((after, last, rollout, said, log_prob), _), hidden = collected
    done = rollout.done
    np.testing.assert_array_equal(done, np.broadcast_to(np.isin(np.arange(STEPS), [2, 5])[:, None], done.shape))
    np.testing.assert_allclose(rollout.value, said.value, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(rollout.log_prob, log_prob, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(rollout.features, said.features, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(rollout.logits, said.policy.logits[:-1], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(rollout.hidden[0], hidden)
    carried = np.where(done[:, :, None], 0, said.hidden[:-1])  # a new episode starts from zero
    np.testing.assert_allclose(rollout.hidden[1:], carried, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(last, rollout.hidden[-1])
    np.testing.assert_array_equal(after.now.obs, rollout.obs[-1])
    # What is seen next is the successor inside an episode, and another level's start after its end.
    np.testing.assert_array_equal(rollout.obs[1:][~done], rollout.next_obs[~done])
    assert (rollout.obs[1:][done] >= 2).all()
    assert (rollout.next_obs[done] <= HIGH).all()


def test_only_the_environment_sees_clipped_actions(collected):
    (_, _, rollout, _, _), _ = collected[0]
    assert rollout.action.min() < LOW
    assert rollout.action.max() > HIGH
    np.testing.assert_array_equal(rollout.next_obs, np.clip(rollout.action, np.float32(LOW), np.float32(HIGH)))


def test_greedy_takes_the_mean(collected):
    _, (_, _, rollout, said, _) = collected[0]
    np.testing.assert_allclose(rollout.action, said.policy.logits[:-1], rtol=1e-5, atol=1e-6)
    assert rollout.features is None
    assert rollout.logits is None
