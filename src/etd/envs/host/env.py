"""A host environment as training sees it, and what a checkpoint stores of it.

In general a simulator's state cannot be saved. But its episodes are numbered, and an environment whose randomness comes
only from its seed returns to the same state when the episode's actions are replayed. So a checkpoint stores those.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from etd.core.types import Box, EnvSpec
from etd.envs import host
from etd.envs.custom import Factory


class Normaliser(NamedTuple):
    """Running mean and variance of the observations, separate for every environment, as in Gymnasium's
    NormalizeObservation. In float32, like the checkpoint."""

    seen: np.ndarray
    """[N]"""
    mean: np.ndarray
    """[N, D]"""
    var: np.ndarray
    """[N, D]"""

    @classmethod
    def start(cls, num_envs: int, size: int) -> Normaliser:
        shape = (num_envs, size)
        return cls(np.full(num_envs, 1e-4, np.float32), np.zeros(shape, np.float32), np.ones(shape, np.float32))

    def enter(self, obs: np.ndarray, rows: np.ndarray) -> None:
        """Add one observation [R, D] for each of the environments ``rows`` [R], in place."""
        seen, apart = self.seen[rows][:, None], obs - self.mean[rows]
        total = seen + 1
        self.mean[rows] += apart / total
        self.var[rows] = (self.var[rows] * seen + apart * apart * seen / total) / total
        self.seen[rows] = total[:, 0]

    def __call__(self, obs: np.ndarray, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        return ((obs - self.mean[rows]) / np.sqrt(self.var[rows] + 1e-8)).astype(np.float32)

    def pooled(self, num_envs: int) -> Normaliser:
        """The statistics of all environments pooled, repeated for ``num_envs`` new ones."""
        weight = (self.seen / self.seen.sum())[:, None]
        mean = (weight * self.mean).sum(0)
        var = (weight * (self.var + np.square(self.mean - mean))).sum(0)
        one = Normaliser(self.seen.sum()[None], mean[None], var[None])
        return Normaliser(*(np.repeat(field, num_envs, 0).astype(np.float32) for field in one))


class Running(NamedTuple):
    """What is needed to replay N host environments to their current state. With a leading axis S for all seeds."""

    episode: np.ndarray
    """[N] int32: the current episode's number"""
    time: np.ndarray
    """[N] int32: steps taken in it"""
    actions: np.ndarray
    """[N, max_steps] or [N, max_steps, size]: the actions taken in it"""
    present: np.ndarray
    """[N] uint32 fingerprint of the current observation"""
    normaliser: Normaliser | None


@dataclass(frozen=True)
class HostEnv:
    """Describes a host environment; the workers of a pool create and step it."""

    id: str
    normalise: bool = False
    factory: Factory | None = None
    """creates it, if it is the user's own"""

    @property
    def spec(self) -> EnvSpec:
        """Read from the environment itself, which is created once for this."""
        return _spec(self.id, self.factory)

    def make(self) -> Any:
        """One Gymnasium environment."""
        if self.factory is None:
            return host.make(self.id)
        from etd.envs.host.gymnasium import adapted

        env = adapted(self.id, self.factory)
        host.spec_of(env, self.id)
        return env

    def begin(self, num_envs: int) -> Running:
        """Every environment at the start of its episode 0."""
        spec, whole = self.spec, np.zeros(num_envs, np.int32)
        kind, tail = (np.float32, (spec.action.size,)) if isinstance(spec.action, Box) else (np.int32, ())
        actions = np.zeros((num_envs, spec.max_steps, *tail), kind)
        normaliser = Normaliser.start(num_envs, spec.obs_size) if self.normalise else None
        return Running(whole, whole, actions, whole.astype(np.uint32), normaliser)


@lru_cache(maxsize=64)
def _spec(name: str, factory: Factory | None) -> EnvSpec:
    env = HostEnv(name, factory=factory).make()
    try:
        return host.spec_of(env, name)
    finally:
        env.close()
