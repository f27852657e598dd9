"""What `etd bench` measures adds up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.corridor import HOST

from etd.agent.ppo import PPO
from etd.bonuses import NoBonus
from etd.core.errors import UserError
from etd.envs import Task
from etd.lab.bench import host as hostbench
from etd.lab.bench import training as bench
from etd.train.experiment import Experiment


@pytest.mark.slow
def test_a_bonus_costs_more_than_none() -> None:
    result = bench.bonuses("MiniGrid-DoorKey-5x5-v0", ["count", "icm"], repeats=2)
    assert list(result["relative"]) == ["none", "count", "icm"]
    assert result["relative"]["none"] == 1
    assert result["relative"]["icm"] > 1.2
    assert result["iteration_s"]["none"] > 0


TINY = Experiment(
    env=Task(HOST), bonus=NoBonus(), ppo=PPO(minibatch=16, epochs=1, features=8, latent=8), num_envs=4, rollout_steps=16
)


def test_host_environments_alone_in_a_pool_and_in_training() -> None:
    """All four rates are positive, whole iterations are slower than acting, and acting waits for part of its time."""
    row = hostbench.measure(TINY, repeats=2, seconds=0.2)
    assert min(row[name] for name in ("alone", "pool", "acting", "training")) > 0
    assert row["training"] <= row["acting"]
    assert 0 < row["waiting"] < 1
    assert row["num_envs"] == 4


def test_what_cannot_be_measured_gets_a_sentence() -> None:
    with pytest.raises(UserError, match="does not live on the host"):
        hostbench.measure(replace(TINY, env=Task("MiniGrid-DoorKey-5x5-v0")), repeats=1)
    with pytest.raises(UserError, match="at least 1"):
        hostbench.measure(TINY, repeats=0)
