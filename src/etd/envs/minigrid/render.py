"""Pictures of a world, drawn as in MiniGrid: the whole grid, with the agent's view highlighted."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from etd.core.types import Array
from etd.envs.minigrid.view import patch, transparent, visible
from etd.envs.minigrid.world import (
    BALL,
    BOX,
    COLOUR_MASK,
    COLOUR_SHIFT,
    DOOR,
    FLOOR,
    GOAL_KIND,
    KEY,
    KIND_MASK,
    LAVA,
    LOCKED,
    LOOK_MASK,
    OPEN,
    STATE_MASK,
    STATE_SHIFT,
    STEP_X,
    STEP_Y,
    WALL_KIND,
    World,
)

Picture: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
Mask: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]
Paint: TypeAlias = tuple[Mask, Any]

TILE = 32
SAMPLES = 3
"""Tiles are drawn three times larger and downsampled by averaging."""
RGB = np.array([(255, 0, 0), (0, 255, 0), (0, 0, 255), (112, 39, 195), (255, 255, 0), (100, 100, 100)], np.uint8)
BLACK = (0, 0, 0)
LINE = (100, 100, 100)

_CENTRES = (np.arange(TILE * SAMPLES) + 0.5) / (TILE * SAMPLES)
_X, _Y = np.meshgrid(_CENTRES, _CENTRES)


def render(world: World, width: int, height: int, view_size: int, see_through_walls: bool) -> Picture:
    """[height * 32, width * 32, 3] the picture of one world."""
    grid = np.asarray(world.grid)
    agent = (int(world.x), int(world.y))
    lit = _highlighted(world, view_size, see_through_walls)
    rows = []
    for y in range(height):
        directions = [int(world.direction) if (x, y) == agent else None for x in range(width)]
        looks = [int(grid[y, x]) & LOOK_MASK for x in range(width)]
        rows.append(np.hstack([_tile(looks[x], directions[x], bool(lit[y, x])) for x in range(width)]))
    return np.vstack(rows)


def _highlighted(world: World, view_size: int, see_through_walls: bool) -> Mask:
    """[size, size] bool: the cells the agent sees."""
    size = world.grid.shape[0]
    seen = np.ones((view_size, view_size), bool) if see_through_walls else np.asarray(_sight(world, view_size))
    dx, dy = STEP_X[int(world.direction)], STEP_Y[int(world.direction)]
    across, along = np.nonzero(seen)
    forward, right = view_size - 1 - along, across - view_size // 2
    x = int(world.x) + dx * forward - dy * right
    y = int(world.y) + dy * forward + dx * right
    inside = (x >= 0) & (x < size) & (y >= 0) & (y < size)
    lit = np.zeros((size, size), bool)
    lit[y[inside], x[inside]] = True
    return lit


@partial(jax.jit, static_argnums=1)
def _sight(world: World, view_size: int) -> Array:
    return visible(transparent(patch(jax.tree.map(jnp.asarray, world), view_size)))


@lru_cache(maxsize=1024)
def _tile(look: int, direction: int | None, lit: bool) -> Picture:
    """[32, 32, 3] one cell, with the agent in it unless ``direction`` is None."""
    picture = np.zeros((TILE * SAMPLES, TILE * SAMPLES, 3), np.uint8)
    layers = [(_box(0, 0.031, 0, 1), LINE), (_box(0, 1, 0, 0.031), LINE), *_paints(look)]
    if direction is not None:
        layers.append((_agent(direction), RGB[0]))
    for mask, colour in layers:
        picture[mask] = np.asarray(colour).astype(np.uint8)
    if lit:
        picture = (picture + 0.3 * (255 - picture)).clip(0, 255).astype(np.uint8)
    blocks = picture.reshape(TILE, SAMPLES, TILE, SAMPLES, 3)
    return blocks.mean(axis=3).mean(axis=1).astype(np.uint8)


def _paints(look: int) -> Iterator[Paint]:
    """The layers of one object, bottom first."""
    kind = look & KIND_MASK
    colour = RGB[(look >> COLOUR_SHIFT) & COLOUR_MASK]
    if kind in (WALL_KIND, GOAL_KIND):
        yield _box(0, 1, 0, 1), colour
    elif kind == FLOOR:
        yield _box(0.031, 1, 0.031, 1), colour / 2
    elif kind == DOOR:
        yield from _door(colour, (look >> STATE_SHIFT) & STATE_MASK)
    elif kind == KEY:
        yield _box(0.50, 0.63, 0.31, 0.88), colour
        yield _box(0.38, 0.50, 0.59, 0.66), colour
        yield _box(0.38, 0.50, 0.81, 0.88), colour
        yield _disc(0.56, 0.28, 0.190), colour
        yield _disc(0.56, 0.28, 0.064), BLACK
    elif kind == BALL:
        yield _disc(0.5, 0.5, 0.31), colour
    elif kind == BOX:
        yield _box(0.12, 0.88, 0.12, 0.88), colour
        yield _box(0.18, 0.82, 0.18, 0.82), BLACK
        yield _box(0.16, 0.84, 0.47, 0.53), colour
    elif kind == LAVA:
        yield from _lava()


def _door(colour: Picture, state: int) -> Iterator[Paint]:
    if state == OPEN:
        yield _box(0.88, 1.00, 0.00, 1.00), colour
        yield _box(0.92, 0.96, 0.04, 0.96), BLACK
        return
    yield _box(0, 1, 0, 1), colour
    if state == LOCKED:
        yield _box(0.06, 0.94, 0.06, 0.94), 0.45 * colour
        yield _box(0.52, 0.75, 0.50, 0.56), colour
    else:
        yield _box(0.04, 0.96, 0.04, 0.96), BLACK
        yield _box(0.08, 0.92, 0.08, 0.92), colour
        yield _box(0.12, 0.88, 0.12, 0.88), BLACK
        yield _disc(0.75, 0.50, 0.08), colour


def _lava() -> Iterator[Paint]:
    yield _box(0, 1, 0, 1), (255, 128, 0)
    for wave in range(3):
        low, high = 0.3 + 0.2 * wave, 0.4 + 0.2 * wave
        for left, start, end in ((0.1, low, high), (0.3, high, low), (0.5, low, high), (0.7, high, low)):
            yield _stroke((left, start), (left + 0.2, end), 0.03), BLACK


def _box(left: float, right: float, top: float, bottom: float) -> Mask:
    return (left <= _X) & (right >= _X) & (top <= _Y) & (bottom >= _Y)


def _disc(x: float, y: float, radius: float) -> Mask:
    return (_X - x) ** 2 + (_Y - y) ** 2 <= radius**2


def _stroke(begin: tuple[float, float], end: tuple[float, float], radius: float) -> Mask:
    """The points within ``radius`` of a segment."""
    along = np.subtract(end, begin)
    length = np.hypot(*along)
    along /= length
    reach = np.clip((_X - begin[0]) * along[0] + (_Y - begin[1]) * along[1], 0, length)
    return np.hypot(_X - begin[0] - reach * along[0], _Y - begin[1] - reach * along[1]) <= radius


def _agent(direction: int) -> Mask:
    """A triangle pointing right, turned clockwise by quarter turns (y points down)."""
    inside = (_X >= 0.12) & (np.abs(_Y - 0.5) <= 0.31 * (0.87 - _X) / 0.75)
    return np.rot90(inside, -direction)
