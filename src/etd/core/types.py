"""The types shared by every other package.

Axis letters, used throughout: S seeds, T rollout steps, N environments, B minibatch, L memory capacity,
D embedding, F policy features, H recurrent state. Shapes are in brackets; a type holds one seed unless it says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from etd.core import hashing

Array: TypeAlias = jax.Array
Key: TypeAlias = jax.Array
PyTree: TypeAlias = Any
Metrics: TypeAlias = dict[str, Array]


PIXELS = 44
"""Minimum height and width for the pixel network; smaller images are treated as a grid of cells."""


@dataclass(frozen=True)
class Discrete:
    """Actions 0 .. n-1.

    >>> Discrete(4).n
    4
    """

    n: int


@dataclass(frozen=True)
class Box:
    """Real vectors of length ``size``, each entry in [low, high].

    >>> Box(size=2, low=-1.0, high=1.0).size
    2
    """

    size: int
    low: float
    high: float


@dataclass(frozen=True)
class EnvSpec:
    """What networks and bonuses may know about an environment; hashable, so it can be static under jit.

    >>> EnvSpec("line", (2,), "float32", 1.0, Discrete(2), max_steps=100, shortest=1, kind="vector").obs_size
    2
    """

    name: str
    obs_shape: tuple[int, ...]
    obs_dtype: str
    obs_high: float
    """The largest value in an image (255 for bytes). Images are divided by it before the first layer."""
    action: Discrete | Box
    max_steps: int
    """No episode is longer, so an episodic memory of ``max_steps + 1`` entries cannot overflow."""
    shortest: int
    """No episode is shorter, which bounds how many level starts a rollout can use."""
    kind: Literal["grid", "pixels", "vector"]
    achievements: tuple[str, ...] = ()
    """Names of what an episode can unlock; the success rate of each is recorded."""
    can_succeed: bool = True
    """Whether termination with a positive reward counts as a success; False where episodes end in a fall or death."""

    @property
    def obs_size(self) -> int:
        return int(np.prod(self.obs_shape))

    def success(self, step: Transition) -> Array:
        """Which steps are successes: the task terminated with a positive reward, even if on the last allowed step."""
        return step.terminated & (step.reward > 0) & self.can_succeed


class Transition(NamedTuple):
    """The result of one environment step; leaves gain leading axes [N] or [T, N] when stacked.

    >>> import jax.numpy as jnp
    >>> step = Transition(jnp.zeros(2), jnp.float32(1), terminated=jnp.bool_(True), truncated=jnp.bool_(False))
    >>> bool(step.done)
    True
    """

    next_obs: Array
    """The true next observation, even where the episode ends."""
    reward: Array
    """[] float32"""
    terminated: Array
    """[] bool: the task ended the episode."""
    truncated: Array
    """[] bool: the step limit ended it. Both may be true on the last step."""
    fingerprint: Array | None = None
    """[] uint32 hash of the full state reached, for counting distinct states; None hashes the observation instead."""
    achieved: Array | None = None
    """[K] bool: which of the spec's achievements this episode has unlocked so far; None if it has none."""

    @property
    def done(self) -> Array:
        return self.terminated | self.truncated


class Rollout(NamedTuple):
    """T steps of N environments under one policy, time-major.

    >>> import jax.numpy as jnp
    >>> obs, zero = jnp.zeros((3, 3, 4)), jnp.zeros((2, 3))
    >>> rollout = Rollout.of(obs[:-1], zero.astype(int), obs[1:], reward=zero, terminated=zero > 0, truncated=zero > 0)
    >>> rollout.next_obs.shape, rollout.done.shape  # [T, N, ...], [T, N]
    ((2, 3, 4), (2, 3))
    """

    obs: Array
    """[T+1, N, ...] what the policy saw; obs[t+1] is the next episode's first observation where step t ended one."""
    step: Transition
    """[T, N, ...]"""
    action: Array
    """[T, N] or [T, N, size], before any clipping to the action box."""
    log_prob: Array
    """[T, N]"""
    value: Array
    """[T+1, N]"""
    hidden: Array
    """[T+1, N, H] recurrent state before each observation; zero before an episode's first."""
    features: Array | None = None
    """[T+1, N, F] the policy's embedding of obs; kept only for bonuses that need it."""
    logits: Array | None = None
    """[T, N, A] action logits; kept only for bonuses that need them."""

    @classmethod
    def of(
        cls, obs: Array, action: Array, next_obs: Array, reward: Array, terminated: Array, truncated: Array
    ) -> Rollout:
        """What bonuses read of a training loop's steps, [T, N, ...] each; the rest is zero. ``next_obs`` is what the
        action led to, also where the episode ends. A pure function: it can be jitted and vmapped.
        """
        visited = jax.vmap(jax.vmap(hashing.fingerprint))(next_obs)
        step = Transition(next_obs, reward, terminated, truncated, visited)
        nothing = jnp.zeros((len(obs) + 1, *reward.shape[1:]))
        seen = jnp.concatenate([obs, next_obs[-1:]])
        return cls(seen, step, action, nothing[1:], nothing, nothing[..., None])

    @property
    def done(self) -> Array:
        """[T, N]"""
        return self.step.done

    @property
    def next_obs(self) -> Array:
        """[T, N, ...]"""
        return self.step.next_obs

    @property
    def fingerprint(self) -> Array:
        """[T, N] uint32; if the environment gives none, the code that steps it hashes the observation."""
        assert self.step.fingerprint is not None
        return self.step.fingerprint
