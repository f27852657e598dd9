"""Meta-World: success alone is paid, and it ends the episode."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from etd.core.errors import UserError
from etd.envs import families, host

if why := families.find("metaworld:reach").absence():
    pytest.skip(why, allow_module_level=True)

pytestmark = pytest.mark.suites


@pytest.mark.parametrize("task", ["reach", "hammer", "button-press"])
def test_the_packages_own_policy_is_paid_exactly_one(task) -> None:
    from metaworld.policies import ENV_POLICY_MAP

    env, policy = host.make(f"metaworld:{task}"), ENV_POLICY_MAP[f"{task}-v3"]()
    for seed in range(3):
        obs, _ = env.reset(seed=seed)
        rewards, terminated, truncated = [], False, False
        while not (terminated or truncated):
            action = np.clip(policy.get_action(obs.astype(np.float64)), -1, 1)
            obs, reward, terminated, truncated, _ = env.step(action)
            rewards.append(reward)
        assert (terminated, truncated) == (True, False)
        assert (rewards[-1], sum(rewards)) == (1.0, 1.0)


def test_time_is_a_truncation() -> None:
    env = host.make("metaworld:hammer")
    env.reset(seed=0)
    steps = [env.step(np.zeros(4, np.float32))[1:4] for _ in range(500)]
    assert steps == [(0.0, False, False)] * 499 + [(0.0, False, True)]
    env.reset()
    assert env.step(np.zeros(4, np.float32))[1:4] == (0.0, False, False)


def test_goals_are_seen_vary_and_are_the_same_in_every_process() -> None:
    code = """
import numpy as np
from etd.envs import host
np.random.seed({})
env = host.make("metaworld:reach")
print([env.reset(seed=seed)[0][-3:].tolist() for seed in range(5)])
"""
    goals = [subprocess.check_output([sys.executable, "-c", code.format(seed)]) for seed in (0, 1)]
    assert goals[0] == goals[1]
    found = eval(goals[0])
    assert len({tuple(goal) for goal in found}) == 5
    assert all(any(goal) for goal in found)


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(UserError, match=r"no environment 'metaworld:hamer'[.] Did you mean 'metaworld:hammer'"):
        host.make("metaworld:hamer")
