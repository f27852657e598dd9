"""Environments. A ``Task`` names one and makes it."""

from __future__ import annotations

from dataclasses import dataclass

from etd.core.errors import unknown
from etd.envs import minigrid
from etd.envs.base import DeviceEnv


@dataclass(frozen=True)
class Task:
    """Which environment to learn in."""

    id: str = "MiniGrid-DoorKey-8x8-v0"
    view_size: int = 7
    """side of the square the agent sees"""
    see_through_walls: bool | None = None
    """None keeps what MiniGrid does for the level"""

    def make(self) -> DeviceEnv:
        """The environment, or a sentence on why it cannot be made."""
        if self.id not in minigrid.IDS:
            raise unknown("environment", self.id, minigrid.IDS, "See `etd list environments`.")
        return minigrid.make(self.id, view_size=self.view_size, see_through_walls=self.see_through_walls)


def ids() -> list[str]:
    """Every environment that a Task can name."""
    return list(minigrid.IDS)
