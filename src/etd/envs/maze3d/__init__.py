"""MiniWorld's maze in JAX: the rooms, motion and first-person view of ``host.miniworld`` as pure functions."""

from etd.envs.maze3d.env import IDS, PREFIX, Maze3D, make

__all__ = ["IDS", "PREFIX", "Maze3D", "make"]
