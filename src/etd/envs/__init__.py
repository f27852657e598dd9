"""Environments. A ``Task`` names one and makes it."""

from __future__ import annotations

from dataclasses import dataclass

from etd.core.errors import UserError, unknown
from etd.envs import maze, minigrid
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
        env: DeviceEnv
        if self.id in minigrid.IDS:
            env = minigrid.make(self.id, view_size=self.view_size, see_through_walls=self.see_through_walls)
        elif self.id not in maze.IDS:
            raise unknown("environment", self.id, ids(), "See `etd list environments`.")
        elif (self.view_size, self.see_through_walls) != (Task.view_size, Task.see_through_walls):
            raise UserError(f"view_size and see_through_walls are MiniGrid's; {self.id} is always seen whole.")
        else:
            env = maze.make(self.id)
        return Noisy(env, self.noise) if self.noise else env


def ids() -> list[str]:
    """Every environment that a Task can name."""
    return [*minigrid.IDS, *maze.IDS]
