"""Environments. A ``Task`` names one and makes it."""

from __future__ import annotations

from dataclasses import dataclass

from etd.envs.base import DeviceEnv
from etd.envs.minigrid import make as make_minigrid


@dataclass(frozen=True)
class Task:
    """Which environment to learn in."""

    id: str = "MiniGrid-DoorKey-8x8-v0"
    view_size: int = 7
    """side of the square the agent sees"""
    see_through_walls: bool = False

    def make(self) -> DeviceEnv:
        return make_minigrid(self.id, view_size=self.view_size, see_through_walls=self.see_through_walls)
