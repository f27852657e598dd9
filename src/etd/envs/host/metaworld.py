"""Meta-World v3 with a reward for success only: 1 in the step that solves the task, which ends the episode.

``metaworld:reach`` is MT1 of ``reach-v3``: 50 goals, the same in every process, one of which is drawn for each episode
and included in the observation [39]. Without success an episode is truncated after 500 steps. The paper gives neither
its version nor its number of steps; these are the package's.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import gymnasium
import numpy as np

from etd.core.errors import unknown
from etd.envs.host.opengl import drawing, headless

headless()
import metaworld  # noqa: E402  (reads MUJOCO_GL)
from metaworld.env_dict import ALL_V3_ENVIRONMENTS  # noqa: E402

GOALS_SEED = 0
"""The seed of the 50 goals."""
PICTURE = 384


def make(name: str) -> RobotEnv:
    task = name.removeprefix("metaworld:")
    known = [known.removesuffix("-v3") for known in ALL_V3_ENVIRONMENTS]
    if task not in known:
        raise unknown("environment", name, [f"metaworld:{known}" for known in known], "Its tasks are those of MT1.")
    return RobotEnv(task)


class RobotEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """One task for the robot arm."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 80}  # noqa: RUF012  (Gymnasium's own declaration)
    can_succeed = True

    def __init__(self, task: str) -> None:
        self.task = task
        self.render_mode = "rgb_array"
        kind = ALL_V3_ENVIRONMENTS[f"{task}-v3"]
        self.robot = kind(render_mode="rgb_array", camera_name="corner2", width=PICTURE, height=PICTURE)
        self.max_steps = self.robot.max_path_length
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (39,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        goals = _goals(self.task)
        self.robot.set_task(goals[self.np_random.integers(len(goals))])
        obs, _ = self.robot.reset()
        return obs.astype(np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        obs, _, _, truncated, info = self.robot.step(action)
        success = bool(info["success"])
        return obs.astype(np.float32), float(success), success, truncated, {}

    def render(self) -> np.ndarray:
        with drawing(f"metaworld:{self.task}"):
            return self.robot.render()[::-1, ::-1]  # this camera of the package is upside down

    def close(self) -> None:
        self.robot.close()


@lru_cache(maxsize=64)
def _goals(task: str) -> tuple[Any, ...]:
    return tuple(metaworld.MT1(f"{task}-v3", seed=GOALS_SEED).train_tasks)
