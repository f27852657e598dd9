"""ObstructedMaze: a blue ball behind locked doors, their keys in boxes, balls in the way.

The v0 levels may put a side room's second blocking ball on top of the first key, which removes that key; the v1 levels
place keys last. Both are kept: the paper's results are on v0.
"""

from __future__ import annotations

import jax.numpy as jnp

from etd.core.types import Array, Key
from etd.envs.minigrid.rooms import Rooms, integer, put, rolls, shuffle
from etd.envs.minigrid.world import (
    BALL,
    BLUE,
    BOX,
    CLOSED,
    COLOURS,
    DOOR,
    GREEN,
    GREY,
    KEY,
    LOCKED,
    STEP_X,
    STEP_Y,
    World,
    cell,
)

TARGET = int(cell(BALL, BLUE))
BLOCK = int(cell(BALL, GREEN))
SIDE_ROOMS = ((2, 1), (1, 2), (0, 1), (1, 0))
"""(column, row) of the rooms between centre and corners, in the order of their side of the centre."""
CORNERS = ((2, 0), (2, 2), (0, 2), (0, 0))


def two_rooms(key: Key, boxed: bool, blocked: bool) -> World:
    """The 1D levels: one locked door, the ball behind it."""
    rooms = Rooms(6, 2, 1)
    colour, door, hide, ball, agent = rolls(key, 5)
    door_colour = integer(colour, 0, COLOURS)
    grid = _lock(rooms, rooms.walls(), rooms.doorway(door, 0, 0, 0), 0, door_colour, blocked)
    grid = rooms.place(hide, grid, 0, 0, _key(door_colour, boxed))
    grid = rooms.place(ball, grid, 1, 0, TARGET)
    return rooms.start(agent, grid, 0, 0, TARGET)


def nine_rooms(
    key: Key, agent_room: tuple[int, int], boxed: bool, blocked: bool, quarters: int, keys_last: bool
) -> World:
    """The other levels: the centre opens onto ``quarters`` side rooms, each with two locked doors to corner rooms."""
    rooms = Rooms(6, 3, 3)
    words = rolls(key, COLOURS + 3 + 5 * quarters)
    colours = shuffle(words[:COLOURS])
    corner_roll, ball, agent = words[COLOURS : COLOURS + 3]
    grid = rooms.walls()
    for i, quarter in enumerate(words[COLOURS + 3 :].reshape(quarters, 5)):
        entry, doors, hides = quarter[0], quarter[1:3], quarter[3:5]
        grid = put(grid, rooms.doorway(entry, 1, 1, i), cell(DOOR, colours[i], CLOSED))
        room, sides = SIDE_ROOMS[i], ((i - 1) % 4, (i + 1) % 4)
        codes = [colours[(i - 1) % COLOURS], colours[(i + 1) % COLOURS]]
        for k in range(2):
            grid = _lock(rooms, grid, rooms.doorway(doors[k], *room, sides[k]), sides[k], codes[k], blocked)
            if not keys_last:
                grid = rooms.place(hides[k], grid, *room, _key(codes[k], boxed))
        if keys_last:
            for k in range(2):
                grid = rooms.place(hides[k], grid, *room, _key(codes[k], boxed))
    corner = integer(corner_roll, 0, quarters)
    column, row = (_pick(corner, [place[axis] for place in CORNERS[:quarters]]) for axis in (0, 1))
    grid = rooms.place(ball, grid, column, row, TARGET)
    return rooms.start(agent, grid, *agent_room, TARGET)


def _lock(rooms: Rooms, grid: Array, doorway: tuple[Array, Array], side: int, colour: Array, blocked: bool) -> Array:
    """A locked door at ``doorway`` and, if ``blocked``, a ball on its near side, replacing what was there."""
    grid = put(grid, doorway, cell(DOOR, colour, LOCKED))
    if blocked:
        x, y = doorway
        grid = put(grid, (x - STEP_X[side], y - STEP_Y[side]), BLOCK)
    return grid


def _key(colour: Array, boxed: bool) -> Array:
    key = cell(KEY, colour)
    return jnp.asarray(cell(BOX, GREY, inside=key) if boxed else key)


def _pick(index: Array, values: list[int]) -> Array:
    return jnp.sum(jnp.where(jnp.arange(len(values)) == index, jnp.array(values), 0))
