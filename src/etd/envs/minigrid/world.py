"""The state of a MiniGrid world and the packing of its cells.

Index convention throughout this package: ``grid[y, x]``, x to the right and y down, as MiniGrid displays it.
Observations keep MiniGrid's own order, ``view[i, j]`` with i across the view and j down it.

A cell is one integer: kind in bits 0-3, colour in bits 4-6, door state in bits 7-8, and in bits 9-15 the kind and
colour of a box's contents (0: empty). Kinds, colours and states are MiniGrid's own codes, so an observation takes three
shifts and masks of a cell. No cell of a grid is ever 0: that code means "unseen".
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from etd.core.types import Array

UNSEEN, EMPTY, WALL_KIND, FLOOR, DOOR, KEY, BALL, BOX, GOAL_KIND, LAVA = range(10)
RED, GREEN, BLUE, PURPLE, YELLOW, GREY = range(6)
OPEN, CLOSED, LOCKED = range(3)
COLOURS = 6

COLOUR_SHIFT, STATE_SHIFT, INSIDE_SHIFT = 4, 7, 9
KIND_MASK, COLOUR_MASK, STATE_MASK = 15, 7, 3
LOOK_MASK = (1 << INSIDE_SHIFT) - 1
"""The visible bits of a cell: all but a box's contents."""

STEP_X = (1, 0, -1, 0)
STEP_Y = (0, 1, 0, -1)
"""The cell ahead, by direction: right, down, left, up."""


class World(NamedTuple):
    """One episode's state. The grid of a level that is not square is padded with walls, as outside the map."""

    grid: Array
    """[size, size] int32 cells"""
    x: Array
    y: Array
    direction: Array
    """[] int32: 0 right, 1 down, 2 left, 3 up"""
    carried: Array
    """[] int32 cell; EMPTY when nothing is carried"""
    time: Array
    """[] int32 steps taken"""
    target: Array
    """[] int32 cell the mission asks for; EMPTY if the level has none"""


def cell(kind: int | Array, colour: int | Array = 0, state: int | Array = 0, inside: int | Array = 0) -> Array | int:
    """The packed code of a cell; works on Python integers and on arrays. ``inside`` is itself a cell."""
    return kind | (colour << COLOUR_SHIFT) | (state << STATE_SHIFT) | (inside << INSIDE_SHIFT)


def kind_of(code: Array) -> Array:
    return code & KIND_MASK


def colour_of(code: Array) -> Array:
    return (code >> COLOUR_SHIFT) & COLOUR_MASK


def state_of(code: Array) -> Array:
    return (code >> STATE_SHIFT) & STATE_MASK


WALL = int(cell(WALL_KIND, GREY))
GOAL = int(cell(GOAL_KIND, GREEN))


def ahead(direction: Array) -> tuple[Array, Array]:
    """(dx, dy) of one step in ``direction``, without a table lookup."""
    sign = 1 - (direction & 2)
    vertical = direction & 1
    return sign * (1 - vertical), sign * vertical


def at(size: int, x: Array | int, y: Array | int) -> Array:
    """[size, size] bool, true only at (x, y). XLA fuses reads and writes by mask, but not by traced index."""
    index = jnp.arange(size, dtype=jnp.int32)
    return (index[:, None] == y) & (index[None, :] == x)


def read(grid: Array, hit: Array) -> Array:
    """[] the cell of ``grid`` where ``hit`` is true, 0 if it is nowhere true."""
    return jnp.sum(jnp.where(hit, grid, 0), dtype=jnp.int32)


def fingerprint(world: World) -> Array:
    """[] uint32 hash of grid, position, direction and carried cell; the clock and the mission are left out."""
    size = world.grid.shape[0]
    salt = np.random.default_rng(size).integers(1 << 32, size=(size, size), dtype=np.uint32)
    total = jnp.sum(_mix(world.grid.astype(jnp.uint32) + salt), dtype=jnp.uint32)
    agent = ((world.y * size + world.x) * 4 + world.direction) * (1 << 16) + world.carried
    return _mix(total ^ _mix(agent.astype(jnp.uint32)))


def _mix(bits: Array) -> Array:
    """A bijection that spreads every input bit over the word (shift and multiply, twice)."""
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x7FEB352D)
    return (bits ^ (bits >> 15)) * jnp.uint32(0x846CA68B)
