"""HalfCheetahVelSparse: its reward by the formula, and MuJoCo where there is no OpenGL."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from etd.envs import families, host

if why := families.find("HalfCheetahVelSparse-v0").absence():
    pytest.skip(why, allow_module_level=True)


def test_reward_by_its_formula_until_time_is_up() -> None:
    env, rng = host.make("HalfCheetahVelSparse-v0"), np.random.default_rng(0)
    env.reset(seed=0)
    paid = 0
    for time in range(1, 1001):
        before = env.data.qpos[0]
        action = rng.uniform(-1, 1, 6).astype(np.float32)
        _, reward, terminated, truncated, _ = env.step(action)
        fast = abs((env.data.qpos[0] - before) / 0.05 - 1.0) < 0.1
        paid += fast
        assert reward == pytest.approx(fast - 0.1 * np.square(action).sum())
        assert (terminated, truncated) == (False, time == 1000)
    assert 0 < paid < 1000
    env.reset()
    assert not env.step(action)[3]


@pytest.mark.skipif(sys.platform != "linux", reason="MUJOCO_GL=disable is Linux's")
def test_without_opengl_it_steps_and_says_why_it_cannot_be_drawn() -> None:
    if why := families.find("dmc:hopper-hop").absence():
        pytest.skip(why)
    code = """
import ctypes
def gone(name): raise OSError(name)
ctypes.CDLL, kept = gone, ctypes.CDLL
from etd.envs.host import opengl
opengl.headless()
ctypes.CDLL = kept
from etd.envs import host
for name in ("HalfCheetahVelSparse-v0", "dmc:cartpole-swingup_sparse"):
    env = host.make(name)
    env.reset(seed=0)
    env.step(env.action_space.sample())
    try:
        env.render()
    except ValueError as error:
        print(error)
"""
    free = {key: value for key, value in os.environ.items() if key not in ("MUJOCO_GL", "PYOPENGL_PLATFORM")}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=free)
    lines = run.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == ["HalfCheetahVelSparse-v0 cannot be drawn", "dmc"]
    assert all("apt-get install libegl1" in line for line in lines)
