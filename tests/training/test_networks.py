"""Trunks and cells of the user's choice, from the first state to an iteration and a checkpoint, on device and host."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location

import jax
import numpy as np
import pytest
from tests.corridor import HOST

from etd.agent.ppo import PPO
from etd.bonuses import ICM, NoBonus
from etd.envs import Task
from etd.lab.runs.store import Run
from etd.nets.cells import LSTM, NoCell
from etd.training import backend, compiled, presets
from etd.training.experiment import Experiment

MINE = """
from dataclasses import dataclass

import jax
from flax import nnx

from etd.nets.blocks import Linear
from etd.nets.trunks import Trunk


class Flat(nnx.Module):
    def __init__(self, inputs, width, features):
        self.first, self.second = Linear(inputs, width), Linear(width, features)

    def __call__(self, obs):
        return self.second(jax.nn.tanh(self.first(obs.reshape(obs.shape[0], -1) / 10.0)))


@dataclass(frozen=True)
class FlatTrunk(Trunk):
    width: int = 6

    def build(self, spec, features, norm):
        return Flat(spec.obs_size, self.width, features)
"""
TINY = {"minibatch": 8, "epochs": 1, "features": 4, "latent": 4, "norm": "none"}

pytestmark = pytest.mark.usefixtures("compile_quickly")


@pytest.fixture
def flat_trunk(tmp_path, monkeypatch):
    """A Trunk class from a file."""
    (tmp_path / "mine.py").write_text(MINE)
    found = spec_from_file_location("mine", tmp_path / "mine.py")
    assert found is not None
    module = module_from_spec(found)
    monkeypatch.setitem(sys.modules, "mine", module)
    found.loader.exec_module(module)
    return module.FlatTrunk


@pytest.mark.slow
def test_a_trunk_from_a_file_serves_policy_and_bonus(flat_trunk):
    """With it a recurrent model, whose cell learns too."""
    experiment = Experiment(
        env=Task("MiniGrid-Empty-5x5-v0"),
        bonus=ICM(**TINY, trunk=flat_trunk(width=5), cell=LSTM()),
        ppo=PPO(**TINY, trunk=flat_trunk(), cell=NoCell()),
        num_envs=2,
        rollout_steps=8,
        seeds=2,
    )
    start = compiled.make_init(experiment)()
    assert start.hidden.shape == (2, 2, 0)
    assert start.learner.bonus.memory.hidden.shape == (2, 2, 8)
    nets = {"policy": (start.learner.policy, 6), "bonus": (start.learner.bonus.learner, 5)}
    for learner, width in nets.values():
        assert learner.params["trunk"]["first"]["kernel"].shape == (2, 147, width)
    before = jax.device_get({name: learner.params for name, (learner, _) in nets.items()})
    state, metrics = compiled.make_step(experiment)(start)
    assert metrics["alive"].all()
    after = jax.device_get({"policy": state.learner.policy.params, "bonus": state.learner.bonus.learner.params})
    for name in after:
        moved = jax.tree.map(lambda a, b: not np.array_equal(a, b), before[name], after[name])
        assert any(jax.tree.leaves(moved)), name
    assert "recurrent" not in after["policy"]
    assert not np.array_equal(before["bonus"]["cell"]["hidden"]["kernel"], after["bonus"]["cell"]["hidden"]["kernel"])


@pytest.mark.slow
def test_a_policy_without_a_state_acts_on_the_host_and_is_saved(tmp_path):
    pytest.importorskip("gymnasium")
    ppo = PPO(**TINY, cell=NoCell(), bootstrap_timeouts=True)
    experiment = Experiment(env=Task(HOST), bonus=NoBonus(), ppo=ppo, num_envs=2, rollout_steps=4, seeds=2)
    with backend.open(experiment) as agents:
        state, _ = agents.advance(agents.start())
        assert state.hidden.shape == (2, 2, 0)
        run = Run.create(tmp_path, presets.choose("MiniGrid-Empty-5x5-v0", "etd"))
        run.save(state, 1)
        restored, _, complaints = Run.open(tmp_path).load(backend.shapes(experiment))
        assert not complaints
        assert restored.hidden.shape == (2, 2, 0)
        state, metrics = agents.advance(restored)
    assert metrics["alive"].all()


def test_experiments_are_told_apart_by_their_networks(flat_trunk):
    """What is compiled for one is not used for another."""
    one = Experiment(ppo=PPO(trunk=flat_trunk(width=3)))
    assert one == replace(one, ppo=PPO(trunk=flat_trunk(width=3)))
    assert hash(one) == hash(replace(one, ppo=PPO(trunk=flat_trunk(width=3))))
    assert one != replace(one, ppo=PPO(trunk=flat_trunk(width=4)))
    assert one != replace(one, ppo=PPO(trunk=flat_trunk(width=3), cell=LSTM()))
