"""Episodes played without learning: how they went, kept whole or counted on the way."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from etd.agent.ppo import PPO
from etd.bonuses import NoBonus
from etd.core.keys import named
from etd.envs import Task, autoreset
from etd.training import evaluate, learn
from etd.training.collect import collect, first_hidden
from etd.training.experiment import Experiment

EPISODES = 24
EXPERIMENT = Experiment(
    env=Task("MiniGrid-Empty-Random-5x5-v0"), bonus=NoBonus(), ppo=PPO(features=8, latent=8, norm="layer"), num_envs=2
)
KEY = jax.random.key(2)


@pytest.fixture(scope="module")
def env():
    return EXPERIMENT.env.make()


@pytest.fixture(scope="module")
def learner(quick, env):
    """Of an agent that has learned nothing: it acts at random."""
    return quick(lambda key: learn.init(EXPERIMENT, env, key).learner)(jax.random.key(0))


def check(outcome, done, reward):
    """Each environment's first episode to its end, and nothing of the next; arrays [T, E]."""
    ends = done.argmax(0)
    assert done.any(0).all()
    np.testing.assert_array_equal(outcome.length, ends + 1)
    np.testing.assert_allclose(outcome.total, [reward[: end + 1, e].sum() for e, end in enumerate(ends)], rtol=1e-6)
    np.testing.assert_array_equal(outcome.success, reward[ends, np.arange(EPISODES)] > 0)
    assert 0 < outcome.success.sum() < EPISODES
    assert (done.sum(0) > 1).any()


def test_outcomes_are_those_of_the_kept_episodes(quick, env, learner):
    play = quick(lambda learner: evaluate.play(EXPERIMENT, env, learner, EPISODES, KEY, False))
    whole = jax.device_get(play(learner))
    check(whole.outcome, whole.rollout.done, whole.rollout.step.reward)


def test_outcomes_counted_on_the_way(quick, env, learner, monkeypatch):
    """The loop in chunks of 7 against the chunks one by one."""
    monkeypatch.setattr(evaluate, "CHUNK", 7)
    envs = quick(lambda: autoreset.begin(env, named(KEY, "levels"), EPISODES))()
    pool = quick(lambda envs: autoreset.generate(env, named(KEY, "levels"), envs, 1))(envs)
    hidden = first_hidden(EXPERIMENT.ppo, EPISODES)
    chunk = quick(
        lambda envs, hidden, k: collect(
            env, learner.policy, envs, hidden, pool, 7, named(KEY, "play", k), frozenset(), False
        )
    )
    done, reward = [], []
    for k in range(-(-env.spec.max_steps // 7)):
        envs, hidden, rollout = chunk(envs, hidden, k)
        done.append(np.asarray(rollout.done))
        reward.append(np.asarray(rollout.step.reward))
    count = quick(lambda learner: evaluate.outcome(EXPERIMENT, env, learner, EPISODES, KEY, False))
    check(jax.device_get(count(learner)), np.concatenate(done), np.concatenate(reward))
