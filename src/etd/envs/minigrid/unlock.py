"""Unlock, UnlockPickup and BlockedUnlockPickup: two rooms, a locked door between them, its key with the agent."""

from __future__ import annotations

from etd.core.types import Array, Key
from etd.envs.minigrid.rooms import Rooms, integer, put, rolls
from etd.envs.minigrid.world import BALL, BOX, COLOURS, DOOR, EMPTY, KEY, LOCKED, World, cell

ROOMS = Rooms(room_size=6, columns=2, rows=1)


def unlock(key: Key, box: bool, blocked: bool) -> World:
    """With ``box``, the mission is to pick up a box behind the door; ``blocked`` puts a ball in front of the door."""
    box_colour, box_place, door_place, door_colour, ball_colour, key_place, agent = rolls(key, 7)
    grid = ROOMS.walls()
    target: Array | int = EMPTY
    if box:
        target = cell(BOX, integer(box_colour, 0, COLOURS))
        grid = ROOMS.place(box_place, grid, 1, 0, target)
    colour = integer(door_colour, 0, COLOURS)
    x, y = ROOMS.doorway(door_place, 0, 0, 0)
    grid = put(grid, (x, y), cell(DOOR, colour, LOCKED))
    if blocked:
        grid = put(grid, (x - 1, y), cell(BALL, integer(ball_colour, 0, COLOURS)))
    grid = ROOMS.place(key_place, grid, 0, 0, cell(KEY, colour))
    return ROOMS.start(agent, grid, 0, 0, target)
