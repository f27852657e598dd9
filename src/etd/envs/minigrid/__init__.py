"""MiniGrid in JAX: the worlds, actions, views and level generators of Farama's MiniGrid as pure functions."""

from etd.envs.minigrid.env import MiniGrid, make
from etd.envs.minigrid.table import IDS

__all__ = ["IDS", "MiniGrid", "make"]
