"""A trainer's observations and actions as bonuses expect them, from Gymnasium's spaces.

| space | becomes |
|---|---|
| Box of three axes | an image [H, W, C]; channels come last, or first if that axis is the shorter one |
| any other Box | a vector |
| Dict with ``image`` | its image; the rest is not used |
| Discrete actions | 0 .. n-1, whatever the first one is |
| Box actions | vectors in [-1, 1] if all bounds are finite; as they are if not |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from etd.core.errors import UserError
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
        if kind != "Box" or not observation_space.shape:
            raise UserError(
                f"Observations of the space {observation_space} are not supported; images and vectors (Box) are. Wrap "
                "the environment to return one of these."
            )
        largest = float(np.max(observation_space.high))
        acts = type(action_space).__name__
        if acts == "Discrete":
            actions: tuple[Any, ...] = (int(action_space.n), int(action_space.start), (), (), ())
        elif acts == "Box" and np.issubdtype(action_space.dtype, np.floating) and action_space.shape:
            low, high = (np.asarray(bound, float).reshape(-1) for bound in (action_space.low, action_space.high))
            bounded = bool(np.isfinite([low, high]).all())
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
        whole = (self.actions, self.first, *self.obs_shape, *self.action_shape)
        real = (self.obs_high, *self.low, *self.high)
        sound = (
            all(type(value) is int for value in whole)
            and all(type(value) in (int, float) and np.isfinite(value) for value in real)
            and isinstance(self.part, str)
            and 0 < np.prod(self.obs_shape, dtype=float) < 2**31
            and 0 <= self.actions < 2**31
            and (bool(self.actions) != bool(self.action_shape))
            and 0 < np.prod(self.action_shape, dtype=float) < 2**31
            and len(self.low) == len(self.high) in (0, int(np.prod(self.action_shape, dtype=float)))
        )
        if not sound:
            raise UserError("The explorer's file describes observations or actions that cannot exist.")
        return self

    @property
    def is_image(self) -> bool:
        return len(self.obs_shape) == 3

    @property
    def channels_first(self) -> bool:
        return self.is_image and self.obs_shape[0] < self.obs_shape[2]

    def spec(self, max_steps: int) -> EnvSpec:
        """What bonuses may know about the environment."""
        shape = self.obs_shape
        if self.channels_first:
            shape = (*shape[1:], shape[0])
        if not self.is_image:
            shape = (int(np.prod(shape)),)
        action: Discrete | Box = Discrete(self.actions)
        if not self.actions:
            action = Box(int(np.prod(self.action_shape)), -1.0, 1.0)
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
        if self.part:
            if not hasattr(given, "keys") or self.part not in given:
                raise UserError(f"{name} should be a dict with the part {self.part!r}, as the space says.")
            given = given[self.part]
        array = np.asarray(given)
        array = _timed(array, self.obs_shape, name, num_envs)
        if self.channels_first:
            array = np.moveaxis(array, 2, -1)
        if not self.is_image:
            array = array.reshape(*array.shape[:2], -1)
        if self.is_image and self.obs_dtype == "uint8":
            if array.dtype != np.uint8:
                raise UserError(f"{name} has the type {array.dtype}; the space says uint8.")
            return array
        return _finite(array, name)

    def moves(self, given: Any, num_envs: int) -> np.ndarray:
        """Actions as [T, N], or [T, N, size] for vectors."""
        array = np.asarray(given)
        if not self.actions:
            array = _timed(array, self.action_shape, "action", num_envs)
            array = _finite(array.reshape(*array.shape[:2], -1), "action")
            if self.low:
                low, high = np.asarray(self.low, np.float32), np.asarray(self.high, np.float32)
                array = 2 * (array - low) / np.maximum(high - low, 1e-8) - 1
            return array
        column = array.ndim == 3 or (array.ndim == 2 and num_envs > 1)
        if column and array.shape[-1] == 1:  # as some buffers keep them
            array = array[..., 0]
        array = _timed(array, (), "action", num_envs)
        whole = array.astype(np.int64, copy=False) if np.issubdtype(array.dtype, np.number) else array
        if array.dtype == bool or not np.issubdtype(array.dtype, np.number) or (whole != array).any():
            raise UserError(f"action has the type {array.dtype}; Discrete actions are whole numbers.")
        whole = whole - self.first
        if whole.size and not (whole.min() >= 0 and whole.max() < self.actions):
            span = f"{self.first} to {self.first + self.actions - 1}"
            raise UserError(f"action has values from {array.min()} to {array.max()}; the space has {span}.")
        return whole.astype(np.int32)


def rows(given: Any, name: str, num_envs: int, dtype: type) -> np.ndarray:
    """Numbers [N] or [T, N] as [T, N]."""
    array = _timed(np.asarray(given), (), name, num_envs)
    if dtype is bool:
        if array.dtype != bool and not np.isin(array, (0, 1)).all():
            raise UserError(f"{name} should be true or false for every environment.")
        return array.astype(bool)
    return _finite(array, name)


def _timed(array: np.ndarray, tail: tuple[int, ...], name: str, num_envs: int) -> np.ndarray:
    """[N, ...] as [1, N, ...], [T, N, ...] as it is."""
    if array.shape == (num_envs, *tail):
        return array[None]
    if array.ndim == len(tail) + 2 and array.shape[1:] == (num_envs, *tail) and len(array):
        return array
    wanted = "".join(f", {size}" for size in tail)
    raise UserError(
        f"{name} has the shape {list(array.shape)}; for {num_envs} environments it should be "
        f"[{num_envs}{wanted}], or [T, {num_envs}{wanted}] for T steps."
    )


def _finite(array: np.ndarray, name: str) -> np.ndarray:
    if not (np.issubdtype(array.dtype, np.number) or array.dtype == bool):
        raise UserError(f"{name} has the type {array.dtype}; it should be numbers.")
    array = array.astype(np.float32)
    if not np.isfinite(array).all():
        raise UserError(f"{name} has values that are not finite. Find out where the environment makes them.")
    return array
