"""Environments so small that the values and the policy to be learned are known; each isolates one ability.

All are trained by the real training iteration, side by side in one compiled function: ``task`` is traced, and a vmap
gives every probe its own agent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from etd.agent.ppo import PPO
from etd.bonuses import NoBonus
from etd.core.types import Array, Box, Discrete, EnvSpec, Transition
from etd.nets.cells import LSTM, NoCell
from etd.training import learn
from etd.training.collect import first_hidden
from etd.training.experiment import Experiment

TASKS = ["constant", "value", "discount", "policy", "both", "memory"]
DISCOUNT = 0.5
PROBE_PPO = PPO(
    learning_rate=3e-3, minibatch=32, discount=DISCOUNT, entropy_coef=0.0, features=16, latent=16, norm="layer"
)


class State(NamedTuple):
    time: Array
    cue: Array
    """-1 or 1"""


@dataclass(frozen=True)
class Probe:
    """Two actions; the observation is one number.

    constant: always 1.  value: the cue is seen and paid.  discount: 1 after two steps, which are told apart.
    policy: 1 for the action that the cue names.  both: the same, but half as much for a cue of -1.
    memory: as policy, but the cue is seen a step before it is asked for.
    """

    task: Array

    @property
    def spec(self):
        return EnvSpec("probe", (1,), "float32", 1.0, Discrete(2), max_steps=2, shortest=1, kind="vector")

    def reset(self, key):
        state = State(jnp.zeros((), jnp.int32), jax.random.rademacher(key, (), jnp.float32))
        return state, self.observe(state)

    def observe(self, state):
        first = state.time == 0
        zero, time = jnp.zeros(()), state.time.astype(jnp.float32)
        by_task = [zero, state.cue, time, state.cue, state.cue, jnp.where(first, state.cue, 0.0)]
        return jnp.stack(by_task)[self.task][None]

    def step(self, state, action, key):
        right = ((action == 1) == (state.cue > 0)).astype(jnp.float32)
        paid = [jnp.ones(()), state.cue, jnp.ones(()), right, right * (0.75 + 0.25 * state.cue), right]
        state = state._replace(time=state.time + 1)
        length = jnp.array([1, 1, 2, 1, 1, 2])[self.task]
        done = state.time == length
        reward = jnp.where(done, jnp.stack(paid)[self.task], 0.0)
        return state, Transition(self.observe(state), reward, done, jnp.zeros((), bool), jnp.zeros((), jnp.uint32))


@dataclass(frozen=True)
class Target:
    """One real action a, paid -(a - 0.3)^2."""

    @property
    def spec(self):
        return EnvSpec("target", (1,), "float32", 1.0, Box(1, -4.0, 4.0), max_steps=1, shortest=1, kind="vector")

    def reset(self, key):
        return jnp.zeros(()), jnp.zeros(1)

    def step(self, state, action, key):
        reward = -jnp.square(action[0] - 0.3)
        yes = jnp.ones((), bool)
        return state, Transition(jnp.zeros(1), reward, yes, ~yes, jnp.zeros((), jnp.uint32))


EXPERIMENT = Experiment(bonus=NoBonus(), ppo=PROBE_PPO, num_envs=8, rollout_steps=16)


def train(env, state, iterations, experiment=EXPERIMENT):
    def one(state, _):
        return learn.iterate(experiment, env, state)[0], None

    return jax.lax.scan(one, state, None, length=iterations)[0].learner


@pytest.fixture(scope="module")
def agents(quick, lively):
    """What every probe's trained policy says of observations -1, 0, 1 at first, and of a 0 after each; the ledger."""

    @quick
    def begin(tasks, keys):
        return jax.vmap(lambda task, key: learn.init(EXPERIMENT, Probe(task), key))(tasks, keys)

    @lively
    @jax.vmap
    def run(task, state):
        learner = train(Probe(task), state, 40)
        net = learner.policy.net()
        first = net(jnp.array([[-1.0], [0.0], [1.0]]), jnp.zeros((3, 16)))
        return first, net(jnp.zeros((3, 1)), first.hidden), learner.ledger

    tasks = jnp.arange(len(TASKS))
    results = jax.tree.map(np.asarray, run(tasks, begin(tasks, jax.random.split(jax.random.key(0), len(TASKS)))))
    return {task: jax.tree.map(lambda leaf, i=i: leaf[i], results) for i, task in enumerate(TASKS)}


def value(out):
    """For observations -1, 0, 1."""
    return out.value


def right(out):
    """Probability of action 1 for observations -1, 0, 1."""
    logits = out.policy.logits
    return 1 / (1 + np.exp(logits[:, 0] - logits[:, 1]))


def test_constant_value(agents):
    first, _, _ = agents["constant"]
    np.testing.assert_allclose(value(first)[1], 1.0, atol=0.05)


def test_value_from_observation(agents):
    first, _, _ = agents["value"]
    np.testing.assert_allclose(value(first)[[0, 2]], [-1.0, 1.0], atol=0.05)


def test_discounting(agents):
    first, _, ledger = agents["discount"]
    np.testing.assert_allclose(value(first)[1], DISCOUNT, atol=0.05)
    np.testing.assert_array_equal(ledger.recent[1], 2.0)  # every episode took two steps


def test_policy_from_observation(agents):
    first, _, ledger = agents["policy"]
    assert right(first)[0] < 0.05
    assert right(first)[2] > 0.95
    assert ledger.recent[3].mean() > 0.95


def test_value_and_policy_from_observation(agents):
    first, _, _ = agents["both"]
    assert right(first)[0] < 0.05
    assert right(first)[2] > 0.95
    np.testing.assert_allclose(value(first)[[0, 2]], [0.5, 1.0], atol=0.05)


def test_memory_of_the_cue(agents):
    first, second, _ = agents["memory"]
    assert right(second)[0] < 0.05
    assert right(second)[2] > 0.95
    np.testing.assert_allclose(value(first)[[0, 2]], DISCOUNT, atol=0.07)
    np.testing.assert_allclose(value(second)[[0, 2]], 1.0, atol=0.07)


@pytest.mark.parametrize("cell", [pytest.param(LSTM(), marks=pytest.mark.slow), NoCell()], ids=["lstm", "none"])
def test_memory_takes_a_cell(quick, lively, cell):
    """The LSTM learns what the GRU does; without a cell every second step looks alike."""
    experiment = replace(EXPERIMENT, ppo=replace(PROBE_PPO, cell=cell))
    env = Probe(jnp.int32(TASKS.index("memory")))

    @lively
    def run(state):
        learner = train(env, state, 40, experiment)
        net = learner.policy.net()
        first = net(jnp.array([[-1.0], [0.0], [1.0]]), first_hidden(experiment.ppo, 3))
        return net(jnp.zeros((3, 1)), first.hidden), learner.ledger

    second, ledger = run(quick(lambda key: learn.init(experiment, env, key))(jax.random.key(0)))
    if isinstance(cell, NoCell):
        assert np.ptp(right(second)) == 0
        assert 0.2 < ledger.recent[3].mean() < 0.8
    else:
        assert right(second)[0] < 0.05
        assert right(second)[2] > 0.95


def test_continuous_action(quick, lively):
    state = quick(lambda key: learn.init(EXPERIMENT, Target(), key))(jax.random.key(0))

    @lively
    def run(state):
        return train(Target(), state, 60).policy.net()(jnp.zeros((1, 1)), jnp.zeros((1, 16)))

    out = run(state)
    mean, std = out.policy.logits[0, 0], np.exp(out.policy.log_std[0])
    np.testing.assert_allclose(mean, 0.3, atol=0.1)
    assert std < 0.6  # it began at 1: a narrower policy is paid more
    np.testing.assert_allclose(out.value[0], -((mean - 0.3) ** 2) - std**2, atol=0.1)
