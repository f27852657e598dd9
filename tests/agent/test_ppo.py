import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from etd.agent.policy import Output
from etd.agent.ppo import PPO, Examples
from etd.core.moments import Moments
from etd.core.types import Discrete, EnvSpec, Rollout, Transition
from etd.nets.heads import Categorical

VECTOR = EnvSpec("vector", (3,), "float32", 1.0, Discrete(4), 100, 1, "vector")


def echo(obs, hidden):
    """A policy whose logits are the observation and whose value is the recurrent state."""
    return Output(Categorical(obs), hidden[:, 0], hidden, obs)


# Ratios 1.5, 1.5, 0.5, 0.5, 1.1 of action 0, which had probability 1/2.
PROBABILITY = np.array([0.75, 0.75, 0.25, 0.25, 0.55])
BATCH = Examples(
    obs=jnp.log(jnp.asarray(np.stack([PROBABILITY, 1 - PROBABILITY], 1), jnp.float32)),
    hidden=jnp.arange(5.0)[:, None],
    action=jnp.zeros(5, jnp.int32),
    log_prob=jnp.full(5, math.log(0.5)),
    value=jnp.array([0.0, 1.0, 1.0, 1.0, 1.0]),
    advantage=jnp.array([1.0, -1.0, 1.0, -1.0, 2.0]),
    target=jnp.ones(5),
)


def test_loss_by_hand(quick):
    ppo = PPO(clip=0.2, entropy_coef=0.1, value_coef=0.5)
    total, metrics = quick(lambda: ppo.loss(echo, BATCH, jax.random.key(0)))()
    # min(A r, A clip(r)): 1.2 (clipped), -1.5, 0.5, -0.8 (clipped), 2.2; squared errors of 0..4 about 1: 1, 0, 1, 4, 9
    policy, value = -(1.2 - 1.5 + 0.5 - 0.8 + 2.2) / 5, 15 / 5
    entropy = -np.mean(PROBABILITY * np.log(PROBABILITY) + (1 - PROBABILITY) * np.log(1 - PROBABILITY))
    kl = np.mean([0.5 - math.log(1.5)] * 2 + [-0.5 - math.log(0.5)] * 2 + [0.1 - math.log(1.1)])
    np.testing.assert_allclose(metrics["policy_loss"], policy, rtol=1e-5)
    np.testing.assert_allclose(metrics["value_loss"], value, rtol=1e-6)
    np.testing.assert_allclose(metrics["entropy"], entropy, rtol=1e-6)
    np.testing.assert_allclose(metrics["kl"], kl, rtol=1e-4)
    np.testing.assert_allclose(metrics["clip_fraction"], 0.8, rtol=1e-6)
    np.testing.assert_allclose(total, policy - 0.1 * entropy + 0.5 * value, rtol=1e-5)


def test_clipped_rows_have_no_gradient(quick):
    def loss(obs):
        return PPO(entropy_coef=0.0, value_coef=0.0).loss(echo, BATCH._replace(obs=obs), jax.random.key(0))[0]

    gradient = quick(jax.grad(loss))(BATCH.obs)
    # d(-A r / 5) / d logit_0 = -A r (1 - p) / 5 where the ratio is not clipped
    expected = [0.0, 1.5 * 0.25 / 5, -0.5 * 0.75 / 5, 0.0, -2.2 * 0.45 / 5]
    np.testing.assert_allclose(gradient[:, 0], expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(gradient.sum(1), 0, atol=1e-6)


def test_value_clip_and_minibatch_norm_by_hand(quick):
    ppo = PPO(value_clip=0.5, advantage_norm="minibatch")
    _, metrics = quick(lambda: ppo.loss(echo, BATCH, jax.random.key(0)))()
    # Values 0..4 may leave 0, 1, 1, 1, 1 by a half: 0, 1, 1.5, 1.5, 1.5
    np.testing.assert_allclose(metrics["value_loss"], (1 + 0 + 3 * 0.25) / 5, rtol=1e-6)
    a = np.array([1.0, -1.0, 1.0, -1.0, 2.0])
    a = (a - a.mean()) / (a.std(ddof=1) + 1e-5)
    ratio = np.array([1.5, 1.5, 0.5, 0.5, 1.1])
    np.testing.assert_allclose(
        metrics["policy_loss"], -np.minimum(a * ratio, a * np.clip(ratio, 0.8, 1.2)).mean(), rtol=1e-5
    )


@pytest.fixture(scope="module")
def rollout():
    """Random, with ends of every kind; its log-probabilities and values are those of no policy in particular."""
    rng = np.random.default_rng(1)
    steps, envs, width = 6, 4, 5

    def floats(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    terminated, truncated = jnp.asarray(rng.random((2, steps, envs)) < 0.4)
    transition = Transition(
        floats(steps, envs, 3), floats(steps, envs), terminated, truncated, jnp.zeros((steps, envs), jnp.uint32)
    )
    action = jnp.asarray(rng.integers(4, size=(steps, envs)))
    value, hidden = floats(steps + 1, envs), floats(steps + 1, envs, width)
    return Rollout(floats(steps + 1, envs, 3), transition, action, -jnp.ones((steps, envs)), value, hidden)


def policy_learner(fill, norm, **fields):
    ppo = PPO(features=5, latent=6, norm=norm, **fields)
    return ppo, fill(lambda key: ppo.init(key, VECTOR))


def test_final_values_are_those_of_pure_timeouts(quick, fill, rollout):
    ppo, learner = policy_learner(fill, "layer")

    @quick
    def run(learner):
        net = learner.net()

        def one(obs, hidden, next_obs):  # a step alone: recurrent state through obs, then the value of its successor
            return net(next_obs[None], net(obs[None], hidden[None]).hidden).value[0]

        each = jax.vmap(jax.vmap(one))(rollout.obs[:-1], rollout.hidden[:-1], rollout.next_obs)
        return ppo.final_values(learner, rollout), each

    final, each = run(learner)
    timeouts = np.asarray(rollout.step.truncated) & ~np.asarray(rollout.step.terminated)
    assert 0 < timeouts.sum() < rollout.done.sum()
    np.testing.assert_allclose(final, np.where(timeouts, each, 0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bootstrap", [False, True])
def test_improve_standardises_advantages_and_learns_towards_returns(quick, fill, rollout, bootstrap):
    """One minibatch of everything: the first losses follow from the rollout by hand."""
    ppo, learner = policy_learner(fill, "layer", epochs=1, minibatch=24, bootstrap_timeouts=bootstrap)
    start = Moments(jnp.array([0.1, 0.2, 0.3, 0.4]), jnp.array(2.0))

    @quick
    def run(learner):
        reward = rollout.step.reward * 2
        out = jax.vmap(learner.net())(rollout.obs[:-1], rollout.hidden[:-1])
        final = ppo.final_values(learner, rollout)
        return ppo.improve(learner, start, rollout, reward, jax.random.key(0)), reward, out, final

    (_, moments, metrics), reward, out, final = jax.tree.map(np.asarray, run(learner))
    done, value = np.asarray(rollout.done), np.asarray(rollout.value)
    advantage, later = np.zeros((6, 4)), np.zeros(4)
    for t in reversed(range(6)):
        after = np.where(done[t], final[t] * bootstrap, value[t + 1])
        later = reward[t] + 0.99 * after - value[t] + 0.99 * 0.95 * np.where(done[t], 0, later)
        advantage[t] = later
    target = advantage + value[:-1]
    mean = 0.9 * np.asarray(start.mean) + 0.1 * advantage.mean(0)
    var = 0.9 * 2.0 + 0.1 * np.square(advantage - mean).mean()
    advantage = (advantage - mean) / (np.sqrt(var) + 1e-5)
    np.testing.assert_allclose(moments.mean, mean, rtol=1e-5)
    np.testing.assert_allclose(moments.var, var, rtol=1e-5)

    log_p = out.policy.logits - np.log(np.exp(out.policy.logits).sum(-1, keepdims=True))
    ratio = np.exp(np.take_along_axis(log_p, np.asarray(rollout.action)[..., None], -1)[..., 0] + 1)
    policy_loss = -np.minimum(advantage * ratio, advantage * np.clip(ratio, 0.8, 1.2)).mean()
    np.testing.assert_allclose(metrics["policy_loss"], policy_loss, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(metrics["value_loss"], np.square(target - out.value).mean(), rtol=1e-4)
    explained = 1 - np.var(target - value[:-1]) / np.var(target)
    np.testing.assert_allclose(metrics["explained_variance"], explained, rtol=1e-4)
