"""Simple levels: Empty, DoorKey, Fetch, RedBlueDoors, FourRooms."""

from __future__ import annotations

import jax.numpy as jnp

from etd.core.types import Key
from etd.envs.minigrid.rooms import draw, integer, rectangle, rolls, start, walled
from etd.envs.minigrid.world import (
    BALL,
    BLUE,
    CLOSED,
    COLOURS,
    DOOR,
    EMPTY,
    GOAL,
    KEY,
    LOCKED,
    RED,
    WALL,
    YELLOW,
    World,
    at,
    cell,
)


def empty(key: Key, size: int, anywhere: bool) -> World:
    """An empty room with the goal in the far corner; the agent starts in the opposite one, or anywhere."""
    place, turn = rolls(key, 2)
    grid = jnp.where(at(size, size - 2, size - 2), GOAL, walled(size, size, size))
    if not anywhere:
        return start(grid, at(size, 1, 1), 0)
    return start(grid, draw(place, grid == EMPTY), integer(turn, 0, 4))


def door_key(key: Key, size: int) -> World:
    """A wall with a locked door splits the room; agent and key are on its left, the goal on its right."""
    wall, door, place, turn, hide = rolls(key, 5)
    split = integer(wall, 2, size - 2)
    grid = jnp.where(at(size, size - 2, size - 2), GOAL, walled(size, size, size))
    grid = jnp.where(rectangle(size, split, 0, 1, size), WALL, grid)
    grid = jnp.where(at(size, split, integer(door, 1, size - 2)), cell(DOOR, YELLOW, LOCKED), grid)
    free = (grid == EMPTY) & rectangle(size, 0, 0, split, size)
    agent = draw(place, free)
    grid = jnp.where(draw(hide, free & ~agent), cell(KEY, YELLOW), grid)
    return start(grid, agent, integer(turn, 0, 4))


def fetch(key: Key, size: int, objects: int) -> World:
    """Keys and balls lie scattered; the agent must pick up one given by kind and colour."""
    agent, turn, choice, *words = rolls(key, 3 + 3 * objects)
    grid = walled(size, size, size)
    codes = []
    for kind, colour, place in zip(words[0::3], words[1::3], words[2::3], strict=True):
        codes.append(cell(KEY + integer(kind, 0, BALL - KEY + 1), integer(colour, 0, COLOURS)))
        grid = jnp.where(draw(place, grid == EMPTY), codes[-1], grid)
    wanted = jnp.arange(objects) == integer(choice, 0, objects)
    target = jnp.sum(jnp.where(wanted, jnp.stack(codes), 0))
    return start(grid, draw(agent, grid == EMPTY), integer(turn, 0, 4), target)


def red_blue_doors(key: Key, size: int) -> World:
    """A room in the middle of a grid twice as wide, with a red door on its left and a blue one on its right."""
    agent, turn, red, blue = rolls(key, 4)
    left, right = size // 2, size // 2 + size - 1
    grid = walled(2 * size, 2 * size, size)
    walls = rectangle(2 * size, left, 0, 1, size) | rectangle(2 * size, right, 0, 1, size)
    grid = jnp.where(walls, WALL, grid)
    # MiniGrid places the agent before the doors are cut.
    free = (grid == EMPTY) & rectangle(2 * size, left, 0, size, size)
    grid = jnp.where(at(2 * size, left, integer(red, 1, size - 1)), cell(DOOR, RED, CLOSED), grid)
    grid = jnp.where(at(2 * size, right, integer(blue, 1, size - 1)), cell(DOOR, BLUE, CLOSED), grid)
    return start(grid, draw(agent, free), integer(turn, 0, 4))


def four_rooms(key: Key, size: int = 19) -> World:
    """Two walls cross in the middle, with one gap in each of the four arms; agent and goal are anywhere."""
    agent, turn, goal, *gaps = rolls(key, 7)
    middle = size // 2
    grid = walled(size, size, size)
    grid = jnp.where(rectangle(size, middle, 0, 1, size) | rectangle(size, 0, middle, size, 1), WALL, grid)
    for low, across, down in ((0, gaps[0], gaps[1]), (middle, gaps[2], gaps[3])):
        grid = jnp.where(at(size, integer(across, low + 1, low + middle), middle), EMPTY, grid)
        grid = jnp.where(at(size, middle, integer(down, low + 1, low + middle)), EMPTY, grid)
    here = draw(agent, grid == EMPTY)
    grid = jnp.where(draw(goal, (grid == EMPTY) & ~here), GOAL, grid)
    return start(grid, here, integer(turn, 0, 4))
