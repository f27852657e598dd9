"""An environment that lives on the host, as training sees it, and what a checkpoint keeps of it.

No simulator can be saved in general. But its episodes are named by number, and an environment whose randomness comes
from its seed alone is where it was once it has done again what was done in the episode. So that is what is kept.
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
    """Running mean and variance of every environment's own observations, as Gymnasium's NormalizeObservation keeps
    them. In float32, which is what a checkpoint holds."""

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
        """Count one more observation [R, D] of the environments ``rows`` [R], in place."""
        seen, apart = self.seen[rows][:, None], obs - self.mean[rows]
        total = seen + 1
        self.mean[rows] += apart / total
        self.var[rows] = (self.var[rows] * seen + apart * apart * seen / total) / total
        self.seen[rows] = total[:, 0]

    def __call__(self, obs: np.ndarray, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        return ((obs - self.mean[rows]) / np.sqrt(self.var[rows] + 1e-8)).astype(np.float32)

    def pooled(self, num_envs: int) -> Normaliser:
        """What all environments saw together, for ``num_envs`` others."""
        weight = (self.seen / self.seen.sum())[:, None]
        mean = (weight * self.mean).sum(0)
        var = (weight * (self.var + np.square(self.mean - mean))).sum(0)
        one = Normaliser(self.seen.sum()[None], mean[None], var[None])
        return Normaliser(*(np.repeat(field, num_envs, 0).astype(np.float32) for field in one))


class Running(NamedTuple):
    """N environments of the host, so that they can be played to where they were. Leading axis S for all seeds."""

    episode: np.ndarray
    """[N] int32: which episode each plays"""
    time: np.ndarray
    """[N] int32: how many steps it has taken in it"""
    actions: np.ndarray
    """[N, max_steps] or [N, max_steps, size]: which"""
    present: np.ndarray
    """[N] uint32 fingerprint of the observation they led to"""
    normaliser: Normaliser | None


@dataclass(frozen=True)
class HostEnv:
    """Names an environment that a suite can build; what is built is stepped by a pool's workers."""

    id: str
    normalise: bool = False
    factory: Factory | None = None
    """what makes it, where it is of the user's own"""

    @property
    def spec(self) -> EnvSpec:
        """Known from the environment itself, which is made once for it."""
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
