"""The types every other package speaks in.

Axis letters, here and everywhere: S seeds, T rollout steps, N environments, B minibatch, L memory capacity,
D embedding, F policy features, H recurrent state. Shapes stand in brackets; a type holds one seed unless it says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import numpy as np

Array: TypeAlias = jax.Array
Key: TypeAlias = jax.Array
PyTree: TypeAlias = Any
Metrics: TypeAlias = dict[str, Array]


PIXELS = 44
"""Height and width that the network for pixels needs at least; a smaller image is taken for a grid of cells."""


@dataclass(frozen=True)
class Discrete:
    """Actions 0 .. n-1.

    >>> Discrete(4).n
    4
    """

    n: int


@dataclass(frozen=True)
class Box:
    """Real vectors of ``size`` coordinates, each in [low, high].

    >>> Box(size=2, low=-1.0, high=1.0).size
    2
    """

    size: int
    low: float
    high: float


@dataclass(frozen=True)
class EnvSpec:
    """What networks and bonuses may know of an environment; hashable, so it can be static under jit.

    >>> EnvSpec("line", (2,), "float32", 1.0, Discrete(2), max_steps=100, shortest=1, kind="vector").obs_size
    2
    """

    name: str
    obs_shape: tuple[int, ...]
    obs_dtype: str
    obs_high: float
    """The largest value of an image code (255 for bytes). Images are divided by it before the first layer."""
    action: Discrete | Box
    max_steps: int
    """No episode is longer, so an episodic memory of ``max_steps + 1`` entries cannot overflow."""
    shortest: int
    """No episode is shorter, which bounds how many level starts a rollout can use up."""
    kind: Literal["grid", "pixels", "vector"]
    achievements: tuple[str, ...] = ()
    """What an episode can unlock on its way, by name; success rates of each are recorded."""
    can_succeed: bool = True
    """Whether an episode that the task ends with a reward is a success; where it ends by a fall or a death, none is."""

    @property
    def obs_size(self) -> int:
        return int(np.prod(self.obs_shape))

    def success(self, step: Transition) -> Array:
        """Which steps are successes: the task itself ended the episode with a reward, be it on the last allowed one."""
        return step.terminated & (step.reward > 0) & self.can_succeed


class Transition(NamedTuple):
    """What one step of one environment yields; leaves gain leading axes [N] or [T, N] when stacked.

    >>> import jax.numpy as jnp
    >>> step = Transition(jnp.zeros(2), jnp.float32(1), terminated=jnp.bool_(True), truncated=jnp.bool_(False))
    >>> bool(step.done)
    True
    """

    next_obs: Array
    """The true successor observation, also where the episode ends."""
    reward: Array
    """[] float32"""
    terminated: Array
    """[] bool: the task ended the episode."""
    truncated: Array
    """[] bool: the step limit ended it. Both may be true on the last step."""
    fingerprint: Array | None = None
    """[] uint32 naming the full state reached, for counting distinct states; None names it by what is observed."""
    achieved: Array | None = None
    """[K] bool: which of the spec's achievements this episode has unlocked so far; None where there are none."""

    @property
    def done(self) -> Array:
        return self.terminated | self.truncated


class Rollout(NamedTuple):
    """T steps of N environments under one policy, time-major."""

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
    """[T+1, N, H] recurrent state before each observation; zero at an episode's first."""
    features: Array | None = None
    """[T+1, N, F] the policy's embedding of obs; kept only for bonuses that need it."""
    logits: Array | None = None
    """[T, N, A] action logits; kept only for bonuses that need them."""

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
        """[T, N] uint32; where an environment names no states, whoever steps it does."""
        assert self.step.fingerprint is not None
        return self.step.fingerprint
