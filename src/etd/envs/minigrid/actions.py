"""The seven actions and what ends an episode, as masks on the cell ahead of the agent."""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax.numpy as jnp

from etd.core.types import Array
from etd.envs.minigrid.world import (
    BLUE,
    BOX,
    CLOSED,
    DOOR,
    EMPTY,
    FLOOR,
    GOAL_KIND,
    INSIDE_SHIFT,
    KEY,
    LAVA,
    LOCKED,
    LOOK_MASK,
    OPEN,
    RED,
    STATE_MASK,
    STATE_SHIFT,
    World,
    ahead,
    at,
    cell,
    colour_of,
    kind_of,
    read,
    state_of,
)

LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE, DONE = range(7)
ACTIONS = 7

Rule = Literal["goal", "pickup", "open", "fetch", "doors"]
"""What counts as success besides reaching a goal: picking up the target, opening a door, fetching the right object,
opening the red door before the blue one."""


class Effect(NamedTuple):
    """The outcome of a step, ignoring the step limit."""

    success: Array
    """[] bool: the mission is complete; only this is rewarded."""
    failure: Array
    """[] bool: the episode ended other than by success or the step limit."""


def act(world: World, action: Array, rule: Rule) -> tuple[World, Effect]:
    """The world after ``action`` and whether that ended the episode; the step limit is checked elsewhere."""
    dx, dy = ahead(world.direction)
    hit = at(world.grid.shape[0], world.x + dx, world.y + dy)
    front = read(world.grid, hit)
    kind = kind_of(front)

    turn = (action == RIGHT).astype(jnp.int32) - (action == LEFT).astype(jnp.int32)
    moved = ((action == FORWARD) & can_enter(front)).astype(jnp.int32)
    free_hands = world.carried == EMPTY
    taken = (action == PICKUP) & free_hands & (kind >= KEY) & (kind <= BOX)
    dropped = (action == DROP) & ~free_hands & (front == EMPTY)
    new_front = jnp.where(action == TOGGLE, toggled(front, world.carried), front)
    new_front = jnp.where(taken, EMPTY, jnp.where(dropped, world.carried, new_front))

    after = world._replace(
        grid=jnp.where(hit, new_front, world.grid),
        x=world.x + dx * moved,
        y=world.y + dy * moved,
        direction=(world.direction + turn) & 3,
        carried=jnp.where(taken, front, jnp.where(dropped, EMPTY, world.carried)),
        time=world.time + 1,
    )
    reached = (action == FORWARD) & (kind == GOAL_KIND)
    burnt = (action == FORWARD) & (kind == LAVA)
    success, failure = RULES[rule](world, after, new_front, action)
    return after, Effect(reached | success, burnt | failure)


def can_enter(front: Array) -> Array:
    kind = kind_of(front)
    passable = (kind == EMPTY) | (kind == FLOOR) | (kind == GOAL_KIND) | (kind == LAVA)
    return passable | ((kind == DOOR) & (state_of(front) == OPEN))


def toggled(front: Array, carried: Array) -> Array:
    """The cell ahead after a toggle: doors open and close, locked ones only with their key; boxes become their
    contents."""
    is_door = kind_of(front) == DOOR
    state = state_of(front)
    has_key = (carried & LOOK_MASK) == cell(KEY, colour_of(front))
    new_state = jnp.where(state == OPEN, CLOSED, jnp.where((state == CLOSED) | has_key, OPEN, LOCKED))
    door = (front & ~(STATE_MASK << STATE_SHIFT)) | (new_state << STATE_SHIFT)
    inside = front >> INSIDE_SHIFT
    content = jnp.where(inside == 0, EMPTY, inside)
    return jnp.where(is_door, door, jnp.where(kind_of(front) == BOX, content, front))


def reward_at(time: Array, max_steps: int) -> Array:
    """[] float32 1 - 0.9 time / max_steps, correctly rounded.

    Uses integers, because XLA may compile a float32 division by a constant to a product with its rounded inverse:
    (10 T - 9 t) / 10 T by long division to 30 binary places, with the remainder as a sticky last bit.
    """
    whole = jnp.uint32(10 * max_steps)
    high, rest = jnp.divmod((whole - 9 * time.astype(jnp.uint32)) << 15, whole)
    low, rest = jnp.divmod(rest << 15, whole)
    places = (high << 15) | low | (rest != 0).astype(jnp.uint32)
    return places.astype(jnp.int32).astype(jnp.float32) * jnp.float32(2.0**-30)


def _by_goal(before: World, after: World, front: Array, action: Array) -> tuple[Array, Array]:
    never = jnp.zeros((), bool)
    return never, never


def _by_pickup(before: World, after: World, front: Array, action: Array) -> tuple[Array, Array]:
    """Levels have exactly one object that looks like the target, so its look identifies it."""
    return (action == PICKUP) & ((after.carried & LOOK_MASK) == after.target), jnp.zeros((), bool)


def _by_open(before: World, after: World, front: Array, action: Array) -> tuple[Array, Array]:
    opened = (kind_of(front) == DOOR) & (state_of(front) == OPEN)
    return (action == TOGGLE) & opened, jnp.zeros((), bool)


def _by_fetch(before: World, after: World, front: Array, action: Array) -> tuple[Array, Array]:
    """Picking up any object ends the episode."""
    held = after.carried != EMPTY
    right = after.carried == after.target
    return held & right, held & ~right


def _by_doors(before: World, after: World, front: Array, action: Array) -> tuple[Array, Array]:
    """The red door must be open when the blue one opens; blue first, or red while blue is open, fails."""

    def is_open(world: World, colour: int) -> Array:
        return jnp.any(world.grid == cell(DOOR, colour, OPEN))

    red_before, blue_before = is_open(before, RED), is_open(before, BLUE)
    red_after, blue_after = is_open(after, RED), is_open(after, BLUE)
    success = blue_after & red_before
    return success, ~success & (blue_after | (red_after & blue_before))


RULES = {"goal": _by_goal, "pickup": _by_pickup, "open": _by_open, "fetch": _by_fetch, "doors": _by_doors}
