"""MultiRoom: a chain of rooms of random sizes, each entered through a door from the one before; the goal is in the
last."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from etd.core.keys import named
from etd.core.types import Array, Key
from etd.envs.minigrid.rooms import draw, integer, put, rectangle, rolls, start
from etd.envs.minigrid.world import CLOSED, COLOURS, DOOR, EMPTY, GOAL, WALL, World, cell

SIZE = 25
SMALLEST = 4
TRIES = 8


class Chain(NamedTuple):
    """Rooms placed so far; arrays hold one entry per room; entries from ``placed`` on are stale."""

    x: Array
    y: Array
    width: Array
    height: Array
    door_x: Array
    door_y: Array
    entry: Array
    """[] which side of the last room its entry door is on: 0 right, 1 down, 2 left, 3 up"""
    placed: Array
    rounds: Array
    """[] rounds of proposals so far; folded into the next round's key"""


def multi_room(key: Key, rooms: int, largest: int) -> World:
    """A level of ``rooms`` rooms, each side between 4 and ``largest``."""
    chain = _build(named(key, "chain"), rooms, largest)
    agent, turn, goal, first_colour, *colour_words = rolls(named(key, "rest"), 4 + rooms - 2)
    # Each door's colour differs from that of the previous door: one of the other five.
    colours = [integer(first_colour, 0, COLOURS)]
    for word in colour_words:
        other = integer(word, 0, COLOURS - 1)
        colours.append(other + (other >= colours[-1]))
    grid = jnp.full((SIZE, SIZE), EMPTY, jnp.int32)
    for index in range(rooms):
        x, y, width, height = (side[index] for side in chain[:4])
        outline = rectangle(SIZE, x, y, width, height) & ~rectangle(SIZE, x + 1, y + 1, width - 2, height - 2)
        grid = jnp.where(outline, WALL, grid)
        if index > 0:
            grid = put(grid, (chain.door_x[index], chain.door_y[index]), cell(DOOR, colours[index - 1], CLOSED))
    first, last = (rectangle(SIZE, *(side[index] for side in chain[:4])) for index in (0, rooms - 1))
    here = draw(agent, (grid == EMPTY) & first)
    grid = jnp.where(draw(goal, (grid == EMPTY) & last & ~here), GOAL, grid)
    return start(grid, here, integer(turn, 0, 4))


def _build(key: Key, rooms: int, largest: int) -> Chain:
    """A complete chain. MiniGrid adds one room after another, with eight tries each; if all fail, it discards the
    chain and starts over until one is complete. One iteration of this loop draws all eight tries for one room and takes
    the first that fits, so the rooms have exactly MiniGrid's distribution."""

    def extend(chain: Chain) -> Chain:
        words = rolls(jax.random.fold_in(key, chain.rounds), 7 * TRIES).reshape(7, TRIES)
        return _append(chain, *_proposals(chain, words, largest))

    none, zero = jnp.zeros((rooms,), jnp.int32), jnp.zeros((), jnp.int32)
    chain = Chain(none, none, none, none, none, none, zero, zero, zero)
    return jax.lax.while_loop(lambda chain: chain.placed < rooms, extend, chain)


def _proposals(chain: Chain, words: Array, largest: int) -> tuple[Array, Array]:
    """[6, tries] (x, y, width, height, door x, door y) of candidate rooms, and [tries] the side their doors are on."""
    wide, high, side_word, along, offset, free_x, free_y = words
    width, height = (integer(word, SMALLEST, largest + 1) for word in (wide, high))
    last = jnp.arange(chain.x.shape[0]) == chain.placed - 1
    last_x, last_y, last_width, last_height = (jnp.sum(jnp.where(last, side, 0)) for side in chain[:4])
    # The exit is on one of the three sides other than the entry.
    exit_side = integer(side_word, 0, 3)
    exit_side = exit_side + (exit_side >= chain.entry)
    sideways = (exit_side == 0) | (exit_side == 2)
    door_x = jnp.where(exit_side == 0, last_x + last_width - 1, last_x)
    door_y = jnp.where(exit_side == 1, last_y + last_height - 1, last_y)
    door_x = jnp.where(sideways, door_x, last_x + integer(along, 1, last_width - 1))
    door_y = jnp.where(sideways, last_y + integer(along, 1, last_height - 1), door_y)
    # The new room touches that wall, shifted along it to keep the door out of its corners.
    x = jnp.where(exit_side == 0, door_x, door_x - width + 1)
    y = jnp.where(exit_side == 1, door_y, door_y - height + 1)
    x = jnp.where(sideways, x, door_x - 1 - integer(offset, 0, width - 2))
    y = jnp.where(sideways, door_y - 1 - integer(offset, 0, height - 2), y)
    # The first room can be anywhere, and counts as entered from the left.
    first = chain.placed == 0
    x, y = jnp.where(first, integer(free_x, 0, SIZE - 2), x), jnp.where(first, integer(free_y, 0, SIZE - 2), y)
    return jnp.stack([x, y, width, height, door_x, door_y]), jnp.where(first, 2, (exit_side + 2) % 4)


def _append(chain: Chain, tries: Array, entries: Array) -> Chain:
    """``chain`` with the first of ``tries`` that fits; an empty chain if none does."""
    x, y, width, height = tries[:4, :, None]
    # MiniGrid keeps the bottom row of the map free, and does not check for overlap with the previous room.
    apart = (x + width < chain.x) | (chain.x + chain.width <= x)
    apart |= (y + height < chain.y) | (chain.y + chain.height <= y)
    index = jnp.arange(chain.x.shape[0])
    inside = (x >= 0) & (y >= 0) & (x + width <= SIZE) & (y + height < SIZE)
    fits = jnp.all(inside & (apart | (index >= chain.placed - 1)), axis=1)
    order = jnp.arange(TRIES)
    chosen = fits & (order == jnp.min(jnp.where(fits, order, TRIES)))
    room = jnp.sum(jnp.where(chosen, tries, 0), axis=1)
    here = jnp.any(fits) & (index == chain.placed)
    x, y, width, height, door_x, door_y = (
        jnp.where(here, value, side) for value, side in zip(room, chain[:6], strict=True)
    )
    return Chain(
        *(x, y, width, height, door_x, door_y),
        entry=jnp.sum(jnp.where(chosen, entries, 0)),
        placed=jnp.where(jnp.any(fits), chain.placed + 1, 0),
        rounds=chain.rounds + 1,
    )
