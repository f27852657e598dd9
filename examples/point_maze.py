"""A point pushed through a maze: an example of your own environment, compiled with training.

    etd train --env point_maze:PointMaze --set env.size=7 --steps 100_000     # from this folder
    etd check --env point_maze:PointMaze

A DeviceEnv is any frozen dataclass with ``spec``, ``reset`` and ``step`` (and ``render``, for films): pure functions of
a single environment. etd adds batching and autoreset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import etd


class Point(NamedTuple):
    """The point's position [2] and the time."""

    place: jax.Array
    time: jax.Array


@dataclass(frozen=True)
class PointMaze:
    """Two rooms with a gap in the wall between them; the goal is the far corner of the right room."""

    size: int = etd.limited(5, least=3)
    slip: float = etd.limited(0.1, least=0)
    """standard deviation of the noise on every push"""

    @property
    def spec(self) -> etd.EnvSpec:
        return etd.EnvSpec(
            name="PointMaze",
            obs_shape=(2,),
            obs_dtype="float32",
            obs_high=1.0,
            action=etd.Box(size=2, low=-1.0, high=1.0),
            max_steps=20 * self.size,
            shortest=self.size // 2,  # a push, noise included, is at most 1 in each direction
            kind="vector",
        )

    def reset(self, key: jax.Array) -> tuple[Point, jax.Array]:
        place = jax.random.uniform(key, (2,), maxval=jnp.array([0.4, 1.0]) * self.size)
        return Point(place, jnp.int32(0)), place / self.size

    def step(self, state: Point, action: jax.Array, key: jax.Array) -> tuple[Point, etd.Transition]:
        push = jnp.clip(action + self.slip * jax.random.normal(key, (2,)), -1, 1)
        wanted = jnp.clip(state.place + push, 0, self.size)
        crosses = (state.place[0] < self.size / 2) != (wanted[0] < self.size / 2)
        blocked = crosses & (jnp.abs(wanted[1] - self.size / 2) > 1)
        place, time = jnp.where(blocked, state.place, wanted), state.time + 1
        solved = (jnp.abs(place - self.size) < 1).all()
        transition = etd.Transition(
            next_obs=place / self.size,
            reward=solved.astype(jnp.float32),
            terminated=solved,
            truncated=time >= self.spec.max_steps,
        )
        return Point(place, time), transition

    def render(self, state: Point) -> np.ndarray:
        y, x = np.mgrid[: 32 * self.size, : 32 * self.size] / 32
        picture = np.full((*x.shape, 3), 255, np.uint8)
        picture[(np.abs(x - self.size / 2) < 0.1) & (np.abs(y - self.size / 2) > 1)] = (40, 44, 52)
        picture[(x > self.size - 1) & (y > self.size - 1)] = (95, 211, 141)
        picture[(x - float(state.place[0])) ** 2 + (y - float(state.place[1])) ** 2 < 0.06] = (220, 40, 40)
        return picture
