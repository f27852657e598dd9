"""MiniWorld's maze by the paper's rules as a device environment; ``host.miniworld`` has the rules and is the original.

Positions are whole twentieths of a metre: rooms of 60 with walls of 5 between them, steps of 12 from a room's centre, a
radius of 8. So motion is exact. MiniWorld adds floats, and where the agent would touch a wall without overlapping it
its rounding decides whether it is stopped. That happens two rooms away from the start; after a straight walk it is
stopped in mazes of up to 5 x 5 rooms, and here it always is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from etd.core.errors import UserError
from etd.core.hashing import fingerprint
from etd.core.keys import named
from etd.core.types import Array, Discrete, EnvSpec, Key, Transition
from etd.envs.maze3d import plan, view
from etd.envs.maze3d.layout import NORTH, WEST, Layout, carve, ends, neighbour

LEFT, RIGHT, FORWARD = range(3)
ROOM, WALL, STEP, RADIUS = 60, 5, 12, 8
"""In twentieths of a metre; WALL is also the length of a passage."""
PITCH = ROOM + WALL
REACHED = (math.hypot(8, 8) + RADIUS + 1.1 * STEP) ** 2
"""Square of the distance at which the box counts as reached: the two radii plus 1.1 steps."""
SIDE, PICTURE = 64, 384
SIZES = range(2, 17)
PREFIX = "Maze3D-S"
IDS = tuple(f"{PREFIX}{size}-v0" for size in (3, 4, 5, 8))


class Maze3DState(NamedTuple):
    """One episode's state."""

    layout: Layout
    place: Array
    """[2] int32: the agent's x and z in twentieths of a metre"""
    facing: Array
    """[] int32: 0 is +x, then counterclockwise seen from above: -z, -x, +z"""
    box: Array
    """[2] int32: the box's x and z"""
    angle: Array
    """[] float32: how far the box is turned, in radians"""
    time: Array
    """[] int32"""


@dataclass(frozen=True)
class Maze3D:
    """A maze of ``size`` x ``size`` rooms. Observations are the agent's view, [64, 64, 3] uint8."""

    size: int

    def __post_init__(self) -> None:
        if self.size not in SIZES:
            raise UserError(f"A maze cannot have {self.size} x {self.size} rooms. Choose {SIZES[0]} to {SIZES[-1]}.")

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(
            name=f"{PREFIX}{self.size}-v0",
            obs_shape=(SIDE, SIDE, 3),
            obs_dtype="uint8",
            obs_high=255.0,
            action=Discrete(3),
            max_steps=24 * self.size**2,
            shortest=self._shortest,
            kind="pixels",
        )

    @property
    def _shortest(self) -> int:
        """A longest way is at least that from corner to corner. Leaving the first room takes 30, every passage 5 (the
        last is reached after half of it), and every room between two passages 60, or around a corner of it a turn, as
        long as a step, and 7 along either axis: a step over the narrow passage may pass its edge that closely."""
        between = 2 * (self.size - 1) - 1
        return math.ceil((ROOM / 2 + WALL / 2 + between * (WALL + 7 + 7 + STEP)) / STEP)

    def reset(self, key: Key) -> tuple[Maze3DState, Array]:
        carved = carve(named(key, "maze"), self.size)
        agent, box = ends(carved)
        angle = jax.random.uniform(named(key, "box"), (), jnp.float32, -math.pi, math.pi)
        zero = jnp.int32(0)
        state = Maze3DState(carved.layout, centre(agent), zero, centre(box), angle, zero)
        return state, self.observe(state)

    def step(self, state: Maze3DState, action: Array, key: Key | None = None) -> tuple[Maze3DState, Transition]:
        """Deterministic; ``key`` exists only for the protocol. The box stops nobody: it is reached before."""
        moved = state.place + STEP * (action == FORWARD) * jnp.stack(ahead(state.facing))
        state = state._replace(
            place=jnp.where(collides(state.layout, moved), state.place, moved),
            facing=(state.facing + (action == LEFT) - (action == RIGHT)) % 4,
            time=state.time + 1,
        )
        reached = ((state.place - state.box) ** 2).sum() < REACHED
        paid = 1 - 0.2 * state.time.astype(jnp.float32) / self.spec.max_steps
        transition = Transition(
            next_obs=self.observe(state),
            reward=jnp.where(reached, paid, 0.0),
            terminated=reached,
            truncated=state.time >= self.spec.max_steps,
            fingerprint=fingerprint(state._replace(time=jnp.int32(0))),
        )
        return state, transition

    def observe(self, state: Maze3DState) -> Array:
        """[64, 64, 3] uint8"""
        return _look(state, SIDE)

    def render(self, state: Maze3DState) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """[384, 768, 3] the maze from above and the agent's view, side by side."""
        layout, place, facing, box, angle, _ = jax.tree.map(np.asarray, state)
        return np.hstack([plan.draw(layout, place, facing, box, angle, PICTURE), np.asarray(_picture(state))])


def make(name: str) -> Maze3D:
    """The maze with an id such as Maze3D-S3-v0."""
    size = name.removeprefix(PREFIX).removesuffix("-v0")
    if not (name.startswith(PREFIX) and name.endswith("-v0") and size.isdecimal()):
        raise UserError(f"{name} is not the id of a maze. Write it as in {IDS[0]}.")
    return Maze3D(int(size))


def ahead(facing: Array) -> tuple[Array, Array]:
    """The x and z of one step."""
    sign = 1 - (facing & 2)
    across = facing & 1
    return sign * (1 - across), -sign * across


def centre(room: Array) -> Array:
    """[2] int32: x and z of the centre of the one room where ``room`` [n, n] is true."""
    index = jnp.arange(room.shape[0])
    return PITCH * jnp.stack([(room.any(0) * index).sum(), (room.any(1) * index).sum()]) + ROOM // 2


def collides(layout: Layout, place: Array) -> Array:
    """[] bool: whether the agent overlaps or touches a wall at ``place`` [2].

    The walls of all rooms fill the spaces between them, except passages; where four rooms meet there is a pillar.
    """
    east, south = layout
    index = jnp.arange(east.shape[0])
    room, inside = place // PITCH, place % PITCH
    here = (index == room[0]) & (index[:, None] == room[1])
    closed_after = ~jnp.stack([(east & here).any(), (south & here).any()])
    closed_before = ~jnp.stack([(neighbour(east, WEST) & here).any(), (neighbour(south, NORTH) & here).any()])
    near_wall = ((inside >= ROOM - RADIUS) & closed_after) | ((inside <= RADIUS) & closed_before)
    to_pillar = jnp.clip(jnp.minimum(inside, ROOM - inside), 0)
    return near_wall.any() | ((to_pillar**2).sum() <= RADIUS**2)


def _look(state: Maze3DState, side: int) -> Array:
    forward = jnp.stack(ahead(state.facing)).astype(jnp.float32)
    return view.draw(state.layout, state.place / 20, forward, state.box / 20, state.angle, side)


_picture = jax.jit(partial(_look, side=PICTURE))
