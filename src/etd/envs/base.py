"""The interface of a device environment: a spec and two pure functions. etd does everything else."""

from __future__ import annotations

from typing import Protocol

import jax
import jax.numpy as jnp

from etd.core.types import Array, Box, Discrete, EnvSpec, Key, PyTree, Transition


def random_actions(space: Discrete | Box, key: Key, lead: tuple[int, ...]) -> Array:
    """Uniform over all actions: int32 [*lead], or float32 [*lead, size]."""
    if isinstance(space, Discrete):
        return jax.random.randint(key, lead, 0, space.n)
    return jax.random.uniform(key, (*lead, space.size), jnp.float32, space.low, space.high)


class DeviceEnv(Protocol):
    """One environment without a batch axis and without autoreset; hashable (a frozen dataclass), pure, traceable.

    All randomness comes from ``key``, so an episode is determined by its keys and actions and can be replayed. For
    films, an optional method ``render(state)`` returns a picture [height, width, 3] uint8 of one state on the host;
    without it the observation is drawn.

    >>> from dataclasses import dataclass
    >>> import jax.numpy as jnp
    >>> import etd
    >>> @dataclass(frozen=True)
    ... class Line:
    ...     spec = etd.EnvSpec("line", (1,), "float32", 1.0, etd.Discrete(2), max_steps=20, shortest=5, kind="vector")
    ...
    ...     def reset(self, key):
    ...         return (jnp.int32(0), jnp.int32(0)), jnp.zeros(1)
    ...
    ...     def step(self, state, action, key):
    ...         place, time = state[0] + 2 * action - 1, state[1] + 1
    ...         obs, end = place[None].astype(jnp.float32), jnp.abs(place) == 5
    ...         return (place, time), etd.Transition(obs, (place == 5).astype(jnp.float32), end, time == 20)
    >>> etd.Task.of(Line()).spec.name
    'line'
    """

    @property
    def spec(self) -> EnvSpec:
        """Shapes, types and limits."""
        ...

    def reset(self, key: Key) -> tuple[PyTree, Array]:
        """A fresh episode: (state, first observation [*obs_shape])."""
        ...

    def step(self, state: PyTree, action: Array, key: Key) -> tuple[PyTree, Transition]:
        """(next state, transition); ``action`` is [] int32 or [size] float32. Undefined after the episode's end."""
        ...
