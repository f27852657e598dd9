"""Environments. A ``Task`` names one and makes it."""

from __future__ import annotations

from dataclasses import dataclass

from etd.core.errors import unknown
from etd.envs import minigrid
from etd.envs.base import DeviceEnv
from etd.envs.noise import Noisy


@dataclass(frozen=True)
class Task:
    """Which environment to learn in."""

    id: str = "MiniGrid-DoorKey-8x8-v0"
    view_size: int = 7
    """side of the square the agent sees"""
    see_through_walls: bool | None = None
    """None keeps what MiniGrid does for the level"""
    noise: float = 0.0
    """standard deviation of Gaussian noise on observations; 0.1 in the authors' code, variance 0.1 in the paper"""

    def make(self) -> DeviceEnv:
        """The environment, or a sentence on why it cannot be made."""
        if self.id not in minigrid.IDS:
            raise unknown("environment", self.id, minigrid.IDS, "See `etd list environments`.")
        env = minigrid.make(self.id, view_size=self.view_size, see_through_walls=self.see_through_walls)
        return Noisy(env, self.noise) if self.noise else env


def ids() -> list[str]:
    """Every environment that a Task can name."""
    return list(minigrid.IDS)
