"""Where a maze's passages are, and its two ends.

Rooms are [row, column]; rows go along z and columns along x, as in MiniWorld. Everything is done with masks: on a GPU a
read or write by traced index would be slow inside a batch.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from etd.core.types import Array, Key

EAST, SOUTH, WEST, NORTH = range(4)


class Layout(NamedTuple):
    """The passages between n x n rooms, which form a tree."""

    east: Array
    """[n, n] bool: whether a room is joined to the one at its east; false in the last column"""
    south: Array
    """[n, n] bool: the same to the south; false in the last row"""


class Carved(NamedTuple):
    """A maze and how it was made."""

    layout: Layout
    order: Array
    """[n, n] int32: 1 for the room visited first, n * n for the last"""
    depth: Array
    """[n, n] int32: how many passages lie between a room and the first"""


def neighbour(rooms: Array, way: int, border: bool | int = 0) -> Array:
    """[n, n] what ``rooms`` holds one room further that way; ``border`` outside the maze."""
    low, high = ((0, 1), (1, 0))[way in (WEST, NORTH)]
    pad = ((0, 0), (low, high)) if way in (EAST, WEST) else ((low, high), (0, 0))
    size = rooms.shape[0]
    rows, columns = (slice(high, high + size) if span != (0, 0) else slice(None) for span in pad)
    return jnp.pad(rooms, pad, constant_values=border)[rows, columns]


def carve(key: Key, size: int) -> Carved:
    """A maze of ``size`` x ``size`` rooms by depth-first search from the north-western one.

    MiniWorld visits a room's neighbours in random order and recursively. Here every round goes on from the room visited
    last of those that have an unvisited neighbour, which is where that recursion has returned to, to one of these
    neighbours, all equally likely, as the next of a random order is.
    """
    numbers = jax.random.uniform(key, (size * size - 1, 4))
    nothing = jnp.zeros((size, size), bool)
    corner = nothing.at[0, 0].set(True)

    def visit(carved: Carved, luck: tuple[Array, Array]) -> tuple[Carved, None]:
        (east, south), order, depth = carved
        number, weight = luck
        new = order == 0
        ways = jnp.stack([neighbour(new, way) for way in range(4)])
        alive = ways.any(0) & ~new
        here = order == jnp.where(alive, order, 0).max()
        free = (ways & here).any((1, 2))
        chosen = jnp.arange(4) == jnp.where(free, weight, -1.0).argmax()
        # The room that has ``here`` to its west lies to the east of it, and so on.
        there = jnp.stack([neighbour(here, (way + 2) % 4) & chosen[way] for way in range(4)]).any(0)
        east |= (here & chosen[EAST]) | (there & chosen[WEST])
        south |= (here & chosen[SOUTH]) | (there & chosen[NORTH])
        order = jnp.where(there, number, order)
        depth = jnp.where(there, 1 + jnp.where(here, depth, 0).sum(), depth)
        return Carved(Layout(east, south), order, depth), None

    first = Carved(Layout(nothing, nothing), corner.astype(jnp.int32), jnp.zeros((size, size), jnp.int32))
    return jax.lax.scan(visit, first, (jnp.arange(2, size * size + 1), numbers))[0]


def distances(layout: Layout, start: Array) -> Array:
    """[n, n] int32: how many passages lie between the one room where ``start`` [n, n] is true and every other."""
    size = start.shape[0]
    far = size * size
    opened = (layout.east, layout.south, neighbour(layout.east, WEST), neighbour(layout.south, NORTH))

    def spread(steps: Array) -> Array:
        for way in range(4):
            steps = jnp.minimum(steps, jnp.where(opened[way], neighbour(steps, way, far) + 1, far))
        return steps

    return jax.lax.while_loop(lambda steps: (steps >= far).any(), spread, jnp.where(start, 0, far).astype(jnp.int32))


def ends(carved: Carved) -> tuple[Array, Array]:
    """[n, n] bool, the room of the agent and that of the box: the two ends of a longest way.

    MiniWorld's version takes the last room that a breadth-first search from the first room reaches, and the last that
    one from there reaches. Of rooms at the same distance the first search reaches last the one visited last. The second
    goes to a room's parent before its other children, so it reaches last the one that leaves the way to the first room
    earliest, which is the deepest, and of these the one visited last.
    """
    layout, order, depth = carved
    size = order.shape[0]
    base = size * size + 1
    box = _largest(depth * base + order)
    return _largest((distances(layout, box) * base + depth) * base + order), box


def _largest(score: Array) -> Array:
    return score == score.max()
