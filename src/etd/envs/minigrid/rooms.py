"""Building blocks of level generators: uniform draws, rectangles, grids of rooms, starts."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from etd.core.types import Array, Key
from etd.envs.minigrid.world import EMPTY, STEP_X, STEP_Y, WALL, World, at


def rectangle(size: int, x: Array | int, y: Array | int, width: Array | int, height: Array | int) -> Array:
    """[size, size] bool, true on the cells of the rectangle with top left corner (x, y)."""
    index = jnp.arange(size, dtype=jnp.int32)
    rows = (index >= y) & (index < y + height)
    columns = (index >= x) & (index < x + width)
    return rows[:, None] & columns[None, :]


def walled(size: int, width: int, height: int) -> Array:
    """[size, size] an empty room of ``width`` by ``height`` including its walls, and walls everywhere outside."""
    return jnp.where(rectangle(size, 1, 1, width - 2, height - 2), EMPTY, WALL).astype(jnp.int32)


def rolls(key: Key, count: int) -> Array:
    """[count] uint32 random words, all that a level needs in one call: unpack them by name and use each once."""
    return jax.random.bits(key, (count,), jnp.uint32)


def integer(roll: Array, low: Array | int, high: Array | int) -> Array:
    """[] int32 in [low, high): the high word of roll * (high - low), uniform to one part in 2^32 / (high - low)."""
    span = jnp.asarray(high - low, jnp.uint32)
    # In 16-bit halves, because JAX has no 64-bit integers by default; spans stay below 2^16.
    top = (roll >> 16) * span + (((roll & 0xFFFF) * span) >> 16)
    return low + (top >> 16).astype(jnp.int32)


def draw(roll: Array, mask: Array) -> Array:
    """A uniformly drawn true entry of ``mask`` (any shape), as a mask.

    MiniGrid uses rejection sampling: it draws a cell of a rectangle until one is allowed. That is uniform over the
    allowed cells.
    """
    ranks = jnp.cumsum(mask.ravel(), dtype=jnp.int32)
    chosen = integer(roll, 1, ranks[-1] + 1)
    return mask & (ranks.reshape(mask.shape) == chosen)


def shuffle(rolls: Array) -> Array:
    """[n] a uniform permutation of 0 .. n-1 from n random words (equal words, one in 2^32, keep their order)."""
    index = jnp.arange(rolls.shape[0])
    less = rolls[None, :] < rolls[:, None]
    earlier = (rolls[None, :] == rolls[:, None]) & (index[None, :] < index[:, None])
    return jnp.sum(less | earlier, axis=1, dtype=jnp.int32)


def position(hit: Array) -> tuple[Array, Array]:
    """(x, y) of the one true entry of ``hit`` [size, size]."""
    index = jnp.arange(hit.shape[0], dtype=jnp.int32)
    y = jnp.sum(jnp.where(hit, index[:, None], 0), dtype=jnp.int32)
    x = jnp.sum(jnp.where(hit, index[None, :], 0), dtype=jnp.int32)
    return x, y


def start(grid: Array, agent: Array, direction: Array | int, target: Array | int = EMPTY) -> World:
    """The first state of an episode, with the agent on the one true entry of ``agent``."""
    x, y = position(agent)
    number = [jnp.asarray(value, jnp.int32) for value in (direction, EMPTY, 0, target)]
    return World(grid.astype(jnp.int32), x, y, *number)


@dataclass(frozen=True)
class Rooms:
    """A grid of equal square rooms with shared walls. Sides are 0 right, 1 down, 2 left, 3 up."""

    room_size: int
    columns: int
    rows: int

    @property
    def pitch(self) -> int:
        return self.room_size - 1

    @property
    def width(self) -> int:
        return self.pitch * self.columns + 1

    @property
    def height(self) -> int:
        return self.pitch * self.rows + 1

    @property
    def size(self) -> int:
        return max(self.width, self.height)

    def walls(self) -> Array:
        """[size, size] the rooms, empty and closed."""
        index = np.arange(self.size)
        inner_x = (index % self.pitch != 0) & (index < self.width)
        inner_y = (index % self.pitch != 0) & (index < self.height)
        return jnp.asarray(np.where(inner_y[:, None] & inner_x[None, :], EMPTY, WALL), jnp.int32)

    def room(self, column: Array | int, row: Array | int) -> Array:
        """[size, size] bool, the cells of one room, including its walls."""
        return rectangle(self.size, column * self.pitch, row * self.pitch, self.room_size, self.room_size)

    def doorway(self, roll: Array, column: Array | int, row: Array | int, side: int) -> tuple[Array, Array]:
        """(x, y) of a door, uniform along one side of a room (corners excluded)."""
        left, top = column * self.pitch, row * self.pitch
        along = integer(roll, 1, self.pitch)
        if side in (0, 2):
            return jnp.asarray(left + (self.pitch if side == 0 else 0)), top + along
        return left + along, jnp.asarray(top + (self.pitch if side == 1 else 0))

    def far_from_centre(self) -> Array:
        """[size, size] bool, the cells where an object may be put before the agent is placed.

        Until then MiniGrid keeps the agent in the middle room and puts objects at least two steps away from it.
        """
        x = self.columns // 2 * self.pitch + self.room_size // 2
        y = self.rows // 2 * self.pitch + self.room_size // 2
        index = np.arange(self.size)
        return jnp.asarray(np.abs(index - x)[None, :] + np.abs(index - y)[:, None] >= 2)

    def place(self, roll: Array, grid: Array, column: Array | int, row: Array | int, code: Array | int) -> Array:
        """``grid`` with an object on a free cell of a room."""
        free = (grid == EMPTY) & self.room(column, row) & self.far_from_centre()
        return jnp.where(draw(roll, free), code, grid)

    def start(self, roll: Array, grid: Array, column: int, row: int, target: Array | int = EMPTY) -> World:
        """The first state, with the agent on a free cell of a room, facing a free cell or a wall."""
        free = (grid == EMPTY) & self.room(column, row)
        open_ahead = (grid == EMPTY) | (grid == WALL)
        shifts = zip(STEP_Y, STEP_X, strict=True)
        poses = jnp.stack([free & jnp.roll(open_ahead, (-dy, -dx), (0, 1)) for dy, dx in shifts])
        pose = draw(roll, poses)
        direction = jnp.sum(jnp.any(pose, axis=(1, 2)) * jnp.arange(4), dtype=jnp.int32)
        return start(grid, jnp.any(pose, axis=0), direction, target)


def put(grid: Array, place: tuple[Array, Array], code: Array | int) -> Array:
    """``grid`` with ``code`` at ``place`` (x, y), replacing what was there."""
    return jnp.where(at(grid.shape[0], *place), code, grid)
