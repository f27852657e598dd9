"""KeyCorridor: a corridor between two columns of rooms; a ball behind the one locked door, its key opposite."""

from __future__ import annotations

import jax.numpy as jnp

from etd.core.types import Array, Key
from etd.envs.minigrid.rooms import Rooms, integer, put, rectangle, rolls, shuffle
from etd.envs.minigrid.world import BALL, CLOSED, COLOURS, DOOR, EMPTY, KEY, LOCKED, World, cell

NEVER = 1 << 20
"""The rank of a door that is never added: later than any other."""


def key_corridor(key: Key, room_size: int, rows: int) -> World:
    """The middle column is the corridor; doors are added at random until every room can be reached."""
    rooms = Rooms(room_size, 3, rows)
    sides = _sides(rows)
    words = rolls(key, 7 + 3 * len(sides))
    which, door_colour, ball_colour, ball_place, key_row, key_place, agent = words[:7]
    order, places, colours = words[7:].reshape(3, len(sides))
    doorways = [rooms.doorway(place, *side) for place, side in zip(places, sides, strict=True)]
    locked = integer(which, 0, rows)

    grid = rooms.walls()
    middle = rectangle(rooms.size, rooms.pitch + 1, 1, rooms.pitch - 1, rooms.height - 2)
    grid = jnp.where(middle, EMPTY, grid)
    lock_colour = integer(door_colour, 0, COLOURS)
    for row in range(rows):
        shut = put(grid, doorways[rows + row], cell(DOOR, lock_colour, LOCKED))
        grid = jnp.where(locked == row, shut, grid)
    target = cell(BALL, integer(ball_colour, 0, COLOURS))
    grid = rooms.place(ball_place, grid, 2, locked, target)
    grid = rooms.place(key_place, grid, 0, integer(key_row, 0, rows), cell(KEY, lock_colour))
    # The agent is placed before the other doors, so it may face one of those but not the locked one.
    world = rooms.start(agent, grid, 1, rows // 2, target)

    grid = world.grid
    added = _added_doors(shuffle(order), rows, locked)
    for index, doorway in enumerate(doorways):
        door = put(grid, doorway, cell(DOOR, integer(colours[index], 0, COLOURS), CLOSED))
        grid = jnp.where(added[index], door, grid)
    return world._replace(grid=grid)


def _sides(rows: int) -> list[tuple[int, int, int]]:
    """(column, row, side) of every possible door: into the left rooms, into the right rooms, and between rooms."""
    across = [(column, row, 0) for column in (0, 1) for row in range(rows)]
    return across + [(column, row, 1) for column in (0, 2) for row in range(rows - 1)]


def _added_doors(rank: Array, rows: int, locked: Array) -> Array:
    """[sides] bool, which doors are added, given the order ``rank`` in which they are tried.

    MiniGrid repeatedly draws a side of a room, adds a door there unless it has one or either room is the locked one,
    and stops when all rooms are connected: a random order of the allowed doors, cut off once everything is connected.
    The cut-off is the maximum over rooms of the minimum over paths of the latest door on the path. A path never needs
    more than ``rows`` doors, since the corridor reaches every row.
    """
    across, between = rank[: 2 * rows].reshape(2, rows), rank[2 * rows :].reshape(2, rows - 1)
    right = jnp.array([[False], [True]])
    at_lock = right & (jnp.arange(rows) == locked)
    # The sides of the locked room are never drawn; its locked door, present from the start, connects it.
    reached = jnp.where(at_lock, -1, across)
    across = jnp.where(at_lock, NEVER, across)
    between = jnp.where(at_lock[:, 1:] | at_lock[:, :-1], NEVER, between)
    edge = jnp.full((2, 1), NEVER)
    for _ in range(rows - 1):
        from_above = jnp.concatenate([edge, jnp.maximum(reached[:, :-1], between)], axis=1)
        from_below = jnp.concatenate([jnp.maximum(reached[:, 1:], between), edge], axis=1)
        reached = jnp.minimum(reached, jnp.minimum(from_above, from_below))
    return jnp.concatenate([across.ravel(), between.ravel()]) <= jnp.max(reached)
