"""Gymnasium environments that nobody has registered."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Walk(gymnasium.Env):
    """A walk to the right end of a line."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length: int = 6, render_mode: str | None = None) -> None:
        self.length, self.max_steps, self.render_mode = length, 4 * length, render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(self.length - 1))
        return self._seen(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.place = max(0, self.place + 2 * int(action) - 1)
        there = self.place >= self.length - 1
        return self._seen(), float(there), there, False, {}

    def render(self) -> np.ndarray:
        picture = np.full((64, 64 * self.length, 3), 255, np.uint8)
        picture[:, 64 * self.place : 64 * self.place + 64] = (220, 40, 40)
        return picture

    def _seen(self) -> np.ndarray:
        return np.array([self.place / self.length, 1], np.float32)


def make_walk(length: int = 4) -> gymnasium.Env:
    """The same by a function."""
    return gymnasium.wrappers.TimeLimit(Walk(length), 10)


class Growing(Walk):
    """Its observations grow longer on the way."""

    def _seen(self) -> np.ndarray:
        return np.ones(2 + (self.place > 3), np.float32)
