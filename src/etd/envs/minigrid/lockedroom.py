"""LockedRoom: six rooms along a hallway, one of them locked with the goal inside, its key in another."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from etd.core.types import Key
from etd.envs.minigrid.rooms import draw, integer, rectangle, rolls, shuffle, start
from etd.envs.minigrid.world import CLOSED, COLOURS, DOOR, EMPTY, GOAL, KEY, LOCKED, WALL, World, at, cell

SIZE = 19
LEFT, RIGHT = SIZE // 2 - 2, SIZE // 2 + 2
"""Columns of the hallway's walls."""
PITCH = SIZE // 3
ROOMS = [(wall, row * PITCH) for row in range(3) for wall in (LEFT, RIGHT)]
"""(column of the door, top row) of each room."""


def _walls() -> np.ndarray:
    """[SIZE, SIZE] the rooms and the hallway, closed."""
    grid = np.full((SIZE, SIZE), EMPTY, np.int32)
    grid[[0, -1], :] = grid[:, [0, -1]] = WALL
    grid[:, [LEFT, RIGHT]] = WALL
    grid[::PITCH, :LEFT] = grid[::PITCH, RIGHT:] = WALL
    return grid


def locked_room(key: Key) -> World:
    """The agent starts in the hallway; every room has a door onto it, each of a different colour."""
    locked_roll, goal_roll, key_roll, hide_roll, agent, turn, *words = rolls(key, 6 + COLOURS)
    colours = shuffle(jnp.stack(words))
    locked = integer(locked_roll, 0, len(ROOMS))
    other = integer(key_roll, 0, len(ROOMS) - 1)
    other = other + (other >= locked)
    key_colour = jnp.sum(jnp.where(jnp.arange(len(ROOMS)) == locked, colours, 0))
    grid = jnp.asarray(_walls())
    goal_room = key_room = jnp.zeros((SIZE, SIZE), bool)
    for index, (wall, top) in enumerate(ROOMS):
        state = jnp.where(locked == index, LOCKED, CLOSED)
        grid = jnp.where(at(SIZE, wall, top + PITCH // 2), cell(DOOR, colours[index], state), grid)
        inside = rectangle(SIZE, 1 if wall == LEFT else RIGHT + 1, top + 1, LEFT - 1, PITCH - 1)
        goal_room |= inside & (locked == index)
        key_room |= inside & (other == index)
    grid = jnp.where(draw(goal_roll, goal_room), GOAL, grid)
    grid = jnp.where(draw(hide_roll, key_room), cell(KEY, key_colour), grid)
    free = (grid == EMPTY) & rectangle(SIZE, LEFT, 0, RIGHT - LEFT, SIZE)
    return start(grid, draw(agent, free), integer(turn, 0, 4))
