"""The DeepMind Control suite beside dm_control itself."""

from __future__ import annotations

import numpy as np
import pytest

from etd.core.errors import UserError
from etd.envs import families, host

if why := families.find("dmc:hopper-hop").absence():
    pytest.skip(why, allow_module_level=True)


@pytest.mark.parametrize("name", ["cartpole-swingup_sparse", "hopper-hop", "walker-run"])
def test_steps_are_two_frames_of_the_suite(name) -> None:
    env = host.make(f"dmc:{name}")
    from dm_control import suite

    raw = suite.load(*name.split("-"), task_kwargs={"random": 4})
    rng = np.random.default_rng(0)
    for episode in range(2):
        obs, _ = env.reset(seed=4) if episode == 0 else env.reset()
        frame = raw.reset()
        for time in range(1, 501):
            parts = [np.ravel(frame.observation[key]) for key in sorted(frame.observation)]
            np.testing.assert_array_equal(obs, np.concatenate(parts).astype(np.float32))
            action = rng.uniform(-1, 1, env.action_space.shape).astype(np.float32)
            total = raw.step(action).reward
            frame = raw.step(action)
            obs, reward, terminated, truncated, _ = env.step(action)
            assert reward == total + frame.reward
            assert not terminated
            assert truncated == (time == 500) == frame.last()


def test_actions_outside_are_clipped() -> None:
    env = host.make("dmc:cartpole-swingup_sparse")
    env.reset(seed=0)
    one = env.step(np.array([5.0], np.float32))[0]
    env.reset(seed=0)
    np.testing.assert_array_equal(one, env.step(np.array([1.0], np.float32))[0])


def test_an_end_by_the_task_is_a_termination(monkeypatch) -> None:
    env = host.make("dmc:cartpole-swingup_sparse")
    env.reset(seed=0)
    monkeypatch.setattr(type(env.env.task), "get_termination", lambda task, physics: 0.0)
    monkeypatch.setattr(type(env.env.task), "get_reward", lambda task, physics: 1.0)
    _, reward, terminated, truncated, _ = env.step(np.zeros(1, np.float32))
    assert (reward, terminated, truncated) == (1.0, True, False)  # its first frame was the last


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(UserError, match=r"no environment 'dmc:cartpole-swing'[.] Did you mean 'dmc:cartpole-swingup"):
        host.make("dmc:cartpole-swing")
    with pytest.raises(UserError, match="unbounded actions"):
        host.make("dmc:lqr-lqr_2_1")
