"""A trainer's observations and actions as bonuses expect them, from Gymnasium's spaces.

| space | becomes |
|---|---|
| Box of three axes | an image [H, W, C]; channels are the axis beside two equal ones, or else the shorter end |
| any other Box | a vector |
| Dict with ``image`` | its image; the rest is not used |
| Discrete actions | 0 .. n-1, whatever the first one is |
| Box actions | vectors in [-1, 1] if all bounds are finite, in float32; as they are if not |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from etd.core.arrays import array
from etd.core.errors import UserError
from etd.core.limits import SEEDS, is_finite, is_number, is_whole
from etd.core.types import PIXELS, Box, Discrete, EnvSpec

IMAGE = "image"
"""The part of a Dict observation that is used."""


@dataclass(frozen=True)
class Interface:
    """What a trainer passes, one environment's, and how to read it. It can be written as JSON."""

    obs_shape: tuple[int, ...]
    obs_dtype: str
    obs_high: float
    """the largest value of an image"""
    part: str
    """the part of a Dict observation; empty if observations are arrays"""
    actions: int
    """how many there are; 0 for vectors"""
    first: int
    """the first of them"""
    low: tuple[float, ...]
    """bounds of a vector of actions; infinite ones are left out, all of them"""
    high: tuple[float, ...]
    action_shape: tuple[int, ...]

    @classmethod
    def of(cls, observation_space: Any, action_space: Any) -> Interface:
        """The interface of two Gymnasium spaces; a UserError if a bonus cannot use them."""
        kind = type(observation_space).__name__
        part = ""
        if kind == "Dict":
            if IMAGE not in observation_space.spaces:
                raise UserError(
                    f"The observations are a Dict of {', '.join(observation_space.spaces)}; only its part {IMAGE!r} "
                    "could be used. Pass the space of the part that bonuses should see, and only that part."
                )
            part, observation_space = IMAGE, observation_space.spaces[IMAGE]
            kind = type(observation_space).__name__
        if kind != "Box" or not observation_space.shape or 0 in observation_space.shape:
            raise UserError(
                f"Observations of the space {observation_space} are not supported; images and vectors (Box) are. Wrap "
                "the environment to return one of these."
            )
        largest = float(np.max(observation_space.high))
        acts = type(action_space).__name__
        if acts == "Discrete":
            actions: tuple[Any, ...] = (int(action_space.n), int(action_space.start), (), (), ())
        elif _is_vector(action_space):
            low, high = (np.asarray(bound, float).reshape(-1) for bound in (action_space.low, action_space.high))
            bounded = is_finite(2 * np.abs([low, high, high - low]).max())
            bounds = (tuple(low.tolist()), tuple(high.tolist())) if bounded else ((), ())
            actions = (0, 0, *bounds, tuple(action_space.shape))
        else:
            raise UserError(
                f"Actions of the space {action_space} are not supported; Discrete ones and vectors (Box of floats) "
                "are. Wrap the environment to accept one of these."
            )
        high_value = largest if np.isfinite(largest) and largest > 0 else 1.0
        return cls(tuple(observation_space.shape), str(observation_space.dtype), high_value, part, *actions)

    def checked(self) -> Interface:
        """Itself, read from a file; a UserError if no spaces have such an interface."""
        sides, bounds = (self.obs_shape, self.action_shape), (self.low, self.high)
        sound = (
            all(type(one) is tuple for one in (*sides, *bounds))
            and all(is_whole(side, 1) for shape in sides for side in shape)
            and all(is_number(value) for value in (self.obs_high, *self.low, *self.high))
            and self.obs_high > 0
            and type(self.part) is type(self.obs_dtype) is str
            and is_whole(self.actions, 0)
            and is_whole(self.first, -SEEDS)
            and self.obs_shape
            and math.prod(self.obs_shape) < SEEDS
            and bool(self.actions) != bool(self.action_shape)
            and len(self.low) == len(self.high) in (0, math.prod(self.action_shape))
        )
        if not sound:
            raise UserError("The explorer's file describes observations or actions that cannot exist.")
        return self

    @property
    def is_image(self) -> bool:
        """One that convolutions can see: of at least 2 x 2."""
        return len(self.obs_shape) == 3 and min(self.obs_shape[1:] if self.channels_first else self.obs_shape[:2]) > 1

    @property
    def channels_first(self) -> bool:
        """Of three axes."""
        one, two, three = self.obs_shape
        return two == three if (one == two) != (two == three) else one < three

    def spec(self, max_steps: int) -> EnvSpec:
        """What bonuses may know about the environment."""
        shape = self.obs_shape
        if not self.is_image:
            shape = (math.prod(shape),)
        elif self.channels_first:
            shape = (*shape[1:], shape[0])
        action: Discrete | Box = Discrete(self.actions)
        if not self.actions:
            action = Box(math.prod(self.action_shape), -1.0, 1.0)
        return EnvSpec(
            name="the environment",
            obs_shape=shape,
            obs_dtype="uint8" if self.is_image and self.obs_dtype == "uint8" else "float32",
            obs_high=self.obs_high if self.is_image else 1.0,
            action=action,
            max_steps=max_steps,
            shortest=1,
            kind="vector" if not self.is_image else "grid" if min(shape[:2]) < PIXELS else "pixels",
        )

    def observations(self, given: Any, name: str, num_envs: int) -> np.ndarray:
        """Observations [N, ...] or [T, N, ...] as [T, N, ...] in the spec's shape and type."""
        return self._turned(_timed(self._part(given, name), self.obs_shape, name, num_envs), name)

    def batch(self, given: Any, name: str) -> np.ndarray:
        """Observations [B, ...] in the spec's shape and type."""
        seen = self._part(given, name)
        if seen.shape[1:] != self.obs_shape or not seen.size:
            wanted = "".join(f", {size}" for size in self.obs_shape)
            raise UserError(f"{name} has the shape {list(seen.shape)}; it should be [B{wanted}], a batch of them.")
        return self._turned(seen[None], name)[0]

    def _part(self, given: Any, name: str) -> np.ndarray:
        """What is seen of observations, as they are."""
        if self.part:
            if not hasattr(given, "keys") or self.part not in given:
                raise UserError(f"{name} should be a dict with the part {self.part!r}, as the space says.")
            given = given[self.part]
        return array(given, name)

    def _turned(self, seen: np.ndarray, name: str) -> np.ndarray:
        """Observations [A, B, ...] in the spec's shape and type."""
        if not self.is_image:
            return _finite(seen.reshape(*seen.shape[:2], -1), name)
        if self.channels_first:
            seen = np.moveaxis(seen, 2, -1)
        if self.obs_dtype != "uint8":
            return _finite(seen, name)
        if seen.dtype != np.uint8:
            raise UserError(f"{name} has the type {seen.dtype}; the space says uint8.")
        return seen

    def moves(self, given: Any, num_envs: int) -> np.ndarray:
        """Actions as [T, N], or [T, N, size] for vectors."""
        moves = array(given, "action")
        if not self.actions:
            moves = _timed(moves, self.action_shape, "action", num_envs)
            moves = _finite(moves.reshape(*moves.shape[:2], -1), "action")
            if self.low:
                low, high = np.asarray(self.low, np.float32), np.asarray(self.high, np.float32)
                moves = 2 * (moves - low) / np.maximum(high - low, 1e-8) - 1
            return moves
        column = moves.ndim == 3 or (moves.ndim == 2 and num_envs > 1)
        if column and moves.shape[-1] == 1:  # as some buffers keep them
            moves = moves[..., 0]
        moves = _timed(moves, (), "action", num_envs)
        whole = moves.astype(np.int64, copy=False) if _is_real(moves) else moves
        if not _is_real(moves) or (whole != moves).any():
            raise UserError(f"action has the type {moves.dtype}; Discrete actions are whole numbers.")
        whole = whole - self.first
        if whole.size and not (whole.min() >= 0 and whole.max() < self.actions):
            span = f"{self.first} to {self.first + self.actions - 1}"
            raise UserError(f"action has values from {moves.min()} to {moves.max()}; the space has {span}.")
        return whole.astype(np.int32)


def rows(given: Any, name: str, num_envs: int, dtype: type) -> np.ndarray:
    """Numbers [N] or [T, N] as [T, N]."""
    found = _timed(array(given, name), (), name, num_envs)
    if dtype is bool:
        if found.dtype != bool and not np.isin(found, (0, 1)).all():
            raise UserError(f"{name} should be true or false for every environment.")
        return found.astype(bool)
    return _finite(found, name)


def _is_vector(space: Any) -> bool:
    """Whether a space is of vectors of floats, or of arrays that can be read as such."""
    is_box = type(space).__name__ == "Box" and np.issubdtype(space.dtype, np.floating)
    return is_box and bool(space.shape) and 0 not in space.shape


def _is_real(numbers: np.ndarray) -> bool:
    """Whether an array is of numbers; truth values are none."""
    return np.issubdtype(numbers.dtype, np.integer) or np.issubdtype(numbers.dtype, np.floating)


def _timed(given: np.ndarray, tail: tuple[int, ...], name: str, num_envs: int) -> np.ndarray:
    """[N, ...] as [1, N, ...], [T, N, ...] as it is."""
    if given.shape == (num_envs, *tail):
        return given[None]
    if given.ndim == len(tail) + 2 and given.shape[1:] == (num_envs, *tail) and len(given):
        return given
    wanted = "".join(f", {size}" for size in tail)
    raise UserError(
        f"{name} has the shape {list(given.shape)}; for {num_envs} environments it should be "
        f"[{num_envs}{wanted}], or [T, {num_envs}{wanted}] for T steps."
    )


def _finite(given: np.ndarray, name: str) -> np.ndarray:
    if not (_is_real(given) or given.dtype == bool):
        raise UserError(f"{name} has the type {given.dtype}; it should be real numbers.")
    found = given.astype(np.float32)
    if not np.isfinite(found).all():
        raise UserError(f"{name} has values that are not finite. Find out where the environment makes them.")
    return found
