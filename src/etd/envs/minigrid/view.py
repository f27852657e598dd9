"""The agent's view: a square patch ahead of it, rotated to face up, with occluded cells hidden."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from etd.core.types import Array
from etd.envs.minigrid.world import (
    COLOUR_MASK,
    COLOUR_SHIFT,
    DOOR,
    KIND_MASK,
    OPEN,
    STATE_MASK,
    STATE_SHIFT,
    WALL,
    WALL_KIND,
    World,
    ahead,
    kind_of,
    state_of,
)


def observe(world: World, view_size: int, see_through_walls: bool) -> Array:
    """[view, view, 3] uint8 (kind, colour, state) codes; all zero where unseen."""
    cells = patch(world, view_size)
    if not see_through_walls:
        cells = jnp.where(visible(transparent(cells)), cells, 0)
    # The agent stands in the middle of the nearest row; that cell shows what it carries, not what it stands on.
    index = jnp.arange(view_size)
    here = (index[:, None] == view_size // 2) & (index[None, :] == view_size - 1)
    cells = jnp.where(here, world.carried, cells)
    kinds = cells & KIND_MASK
    colours = (cells >> COLOUR_SHIFT) & COLOUR_MASK
    states = (cells >> STATE_SHIFT) & STATE_MASK
    return jnp.stack([kinds, colours, states], axis=-1).astype(jnp.uint8)


def patch(world: World, view_size: int) -> Array:
    """[view, view] cells ahead, [i, j] with i from the agent's left to its right and j from far to near.

    Two one-hot selections, of rows and then columns, cut out the square that the view covers; then that square is
    rotated until the agent faces up. Rotating last transposes only the view, never the whole grid.
    """
    size = world.grid.shape[0]
    half = view_size // 2
    dx, dy = ahead(world.direction)
    index = jnp.arange(view_size, dtype=jnp.int32)
    rows = select(world.grid, world.y + (dy - 1) * half + index, size)
    up = select(rows.T, world.x + (dx - 1) * half + index, size)
    right, down, left = up.T[:, ::-1], up[::-1, ::-1], up.T[::-1, :]
    vertical = jnp.where(world.direction == 1, down, up)
    cells = jnp.where((world.direction & 1) == 1, vertical, jnp.where(world.direction == 0, right, left))
    return jnp.where(cells == 0, WALL, cells)


def select(rows: Array, wanted: Array, size: int) -> Array:
    """[view, n] the rows [size, n] with indices ``wanted`` [view]; zeros for indices out of range."""
    hit = wanted[:, None] == jnp.arange(size, dtype=jnp.int32)
    return jnp.sum(jnp.where(hit[:, :, None], rows[None], 0), axis=1, dtype=jnp.int32)


def transparent(cells: Array) -> Array:
    """Whether the agent sees past each cell: walls and closed doors block the view."""
    kinds = kind_of(cells)
    return (kinds != WALL_KIND) & ((kinds != DOOR) | (state_of(cells) == OPEN))


def visible(clear: Array) -> Array:
    """[view, view] which cells are seen, given which are transparent.

    Visibility starts at the agent in the nearest row. A run of transparent cells that contains a seen cell is lit as a
    whole; a lit cell reveals its neighbours in the row, and those three columns one row further. Each row is the bits
    of one word (bit i is column i), so it costs a few word operations whatever its width.
    """
    width = clear.shape[0]
    columns = jnp.uint32(1) << jnp.arange(width, dtype=jnp.uint32)
    rows = jnp.sum(jnp.where(clear, columns[:, None], jnp.uint32(0)), axis=0, dtype=jnp.uint32)
    # spans[k] has bit i set if the 2^k bits from i upwards are all clear.
    spans = [rows]
    for k in range((width - 1).bit_length() - 1):
        spans.append(spans[k] & (spans[k] >> (1 << k)))
    seen = jnp.uint32(1 << (width // 2))
    words = []
    for j in reversed(range(width)):
        lit = _runs(seen & rows[j], [span[j] for span in spans])
        shown = lit | (lit << 1) | (lit >> 1)
        words.append(seen | shown)
        seen = shown
    # The barrier keeps XLA from recomputing the chain above for every cell.
    words = jax.lax.optimization_barrier(jnp.stack(words[::-1]))
    return (words[None, :] & columns[:, None]) != 0


def _runs(source: Array, spans: list[Array]) -> Array:
    """All bits of those runs of clear bits that contain a ``source`` bit."""
    clear = spans[0]
    # Upwards by one carry: adding a run's source bits flips its bits from the lowest source bit on.
    lit = (((source + clear) ^ clear) | source) & clear
    # Downwards by doubling.
    for k, span in enumerate(spans):
        lit |= span & (lit >> (1 << k))
    return lit
