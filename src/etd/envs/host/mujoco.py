"""HalfCheetahVelSparse: a cheetah that is paid only for running at a target speed.

reward = 1[ |v_x - 1| < 0.1 ] - 0.1 |a|^2 on Gymnasium's HalfCheetah-v5, where v_x is a step's displacement divided by
its duration; 1,000 steps. The control cost makes it not purely sparse. The authors use v3, which has the same model.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from etd.envs.host.opengl import drawing, headless

headless()
from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv  # noqa: E402  (reads MUJOCO_GL)

SPEED, MARGIN = 1.0, 0.1
PICTURE = 384


def make(name: str) -> VelSparse:
    return VelSparse()


class VelSparse(HalfCheetahEnv):
    """HalfCheetah-v5 with a different reward and its own step limit."""

    max_steps = 1000

    def __init__(self) -> None:
        super().__init__(render_mode="rgb_array", width=PICTURE, height=PICTURE)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, self.observation_space.shape, np.float32)

    def reset_model(self) -> np.ndarray:
        self.time = 0
        return super().reset_model()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, Any, bool, bool, dict]:
        obs, reward, _, _, info = super().step(action)
        self.time += 1
        return obs, float(reward), False, self.time >= self.max_steps, info

    def render(self) -> np.ndarray:
        with drawing("HalfCheetahVelSparse-v0"):
            return super().render()

    def _get_obs(self) -> np.ndarray:
        return super()._get_obs().astype(np.float32)

    def _get_rew(self, x_velocity: float, action: np.ndarray) -> tuple[float, dict[str, Any]]:
        return float(abs(x_velocity - SPEED) < MARGIN) - self.control_cost(action), {}
