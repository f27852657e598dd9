"""The DeepMind Control suite on state vectors, as the paper runs it.

``dmc:DOMAIN-TASK``; each action is repeated for two frames and their rewards are summed, so the suite's 1,000 frames
are 500 steps. Observations are the task's, flattened in sorted order of their names; actions are in [-1, 1]. The
suite's time limit is a truncation here. The authors' code treats it as a termination; here that is up to the learner.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from etd.core.errors import UserError, unknown
from etd.envs.host.opengl import drawing, headless

headless()
with drawing("The DeepMind Control suite"):  # it looks for OpenGL on import
    from dm_control import suite

FRAMES = 1000
"""Length of every episode of the suite, except lqr's, which have no limit of their own."""
PICTURE = 384


def make(name: str, frame_skip: int = 2) -> ControlEnv:
    domain, _, task = name.removeprefix("dmc:").partition("-")
    if (domain, task) not in suite.ALL_TASKS:
        known = [f"dmc:{domain}-{task}" for domain, task in suite.ALL_TASKS]
        raise unknown("environment", name, known, "The suite's tasks are dmc:DOMAIN-TASK.")
    return ControlEnv(domain, task, frame_skip)


class ControlEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """One task of the suite. A seed gives the episodes of ``suite.load`` with that seed."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012  (Gymnasium's own declaration)

    def __init__(self, domain: str, task: str, frame_skip: int = 2) -> None:
        self.domain, self.task, self.frame_skip = domain, task, frame_skip
        self.max_steps = -(-FRAMES // frame_skip)
        self.render_mode = "rgb_array"
        self.env = self._load(int(self.np_random.integers(1 << 31)))
        self._look = self.env.task.get_observation
        self.env.task.get_observation = lambda physics: None  # of a step's frames only the last is looked at
        spec = self.env.action_spec()
        if (np.abs([spec.minimum, spec.maximum]) > 1e6).any():  # lqr: the only bound is a huge number
            raise UserError(f"dmc:{domain}-{task} has unbounded actions, which are not supported.")
        self.low, self.high = spec.minimum, spec.maximum
        self.env.reset()
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, self._obs().shape, np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, spec.shape, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        if seed is not None:  # all that reloading would change; reloading costs as much as a whole episode
            self.env.task._random = np.random.RandomState(seed)
        self.time = 0
        self.env.reset()
        return self._obs(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        control = self.low + (np.clip(action, -1.0, 1.0).astype(np.float64) + 1.0) / 2.0 * (self.high - self.low)
        self.time += 1
        reward = 0.0
        for _ in range(self.frame_skip):
            frame = self.env.step(control)
            reward += frame.reward or 0.0
            if frame.last():
                break
        terminated = frame.last() and frame.discount == 0.0
        truncated = self.time >= self.max_steps or (frame.last() and not terminated)
        return self._obs(), float(reward), terminated, truncated, {}

    def render(self) -> np.ndarray:
        with drawing(f"dmc:{self.domain}-{self.task}"):
            return self.env.physics.render(PICTURE, PICTURE, camera_id=0)

    def close(self) -> None:
        self.env.close()

    def _load(self, seed: int) -> Any:
        try:
            return suite.load(self.domain, self.task, task_kwargs={"random": seed})
        except AttributeError as error:  # quadruped uses numpy.in1d, which NumPy 2.4 removed
            raise UserError(
                f"dm-control cannot load {self.domain} with the installed NumPy ({error}): pip install 'numpy<2.4'"
            ) from error

    def _obs(self) -> np.ndarray:
        seen = self._look(self.env.physics)
        return np.concatenate([np.ravel(seen[name]) for name in sorted(seen)]).astype(np.float32)
