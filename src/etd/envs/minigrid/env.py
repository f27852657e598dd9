"""MiniGrid as a device environment: one frozen object per level and view."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from etd.core.errors import UserError
from etd.core.types import Array, Discrete, EnvSpec, Key, Transition
from etd.envs.minigrid.actions import ACTIONS, act, reward_at
from etd.envs.minigrid.render import render
from etd.envs.minigrid.table import Level, find
from etd.envs.minigrid.view import observe
from etd.envs.minigrid.world import World, fingerprint

LARGEST_VIEW = 31
"""A row of the view is stored as the bits of one 32-bit word, with one bit spare for shifts."""


@dataclass(frozen=True)
class MiniGrid:
    """A MiniGrid level by its id. Observations are MiniGrid's images, [view, view, 3] uint8 codes."""

    name: str
    view_size: int
    see_through_walls: bool

    def __post_init__(self) -> None:
        find(self.name)
        if self.view_size < 3 or self.view_size % 2 == 0:
            raise UserError(
                f"view_size {self.view_size} is not allowed: the agent stands in the middle of the nearest row, "
                "so it must be odd and at least 3"
            )
        if self.view_size > LARGEST_VIEW:
            raise UserError(f"view_size {self.view_size} is too large: it must be at most {LARGEST_VIEW}")

    @property
    def level(self) -> Level:
        return find(self.name)

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(
            name=self.name,
            obs_shape=(self.view_size, self.view_size, 3),
            obs_dtype="uint8",
            obs_high=255.0,
            action=Discrete(ACTIONS),
            max_steps=self.level.max_steps,
            shortest=self.level.shortest,
            kind="grid",
        )

    def reset(self, key: Key) -> tuple[World, Array]:
        world = self.level.generate(key)
        return world, self.observe(world)

    def step(self, state: World, action: Array, key: Key | None = None) -> tuple[World, Transition]:
        """Deterministic; ``key`` exists only for the protocol."""
        world, outcome = act(state, action, self.level.rule)
        reward = jnp.where(outcome.success, reward_at(world.time, self.level.max_steps), jnp.float32(0))
        transition = Transition(
            next_obs=self.observe(world),
            reward=reward,
            terminated=outcome.success | outcome.failure,
            truncated=world.time >= self.level.max_steps,
            fingerprint=fingerprint(world),
        )
        return world, transition

    def observe(self, world: World) -> Array:
        """[view, view, 3] uint8 the agent's view of ``world``."""
        return observe(world, self.view_size, self.see_through_walls)

    def render(self, state: World) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """[height * 32, width * 32, 3] the whole grid, with the agent's view highlighted."""
        return render(state, self.level.width, self.level.height, self.view_size, self.see_through_walls)


def make(name: str, view_size: int = 7, see_through_walls: bool | None = None) -> MiniGrid:
    """The level called ``name``. ``see_through_walls=None`` keeps MiniGrid's default for that level."""
    if see_through_walls is None:
        see_through_walls = find(name).see_through_walls
    return MiniGrid(name, view_size, see_through_walls)
