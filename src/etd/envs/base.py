"""The two environment protocols: on the device (pure functions, traced) and on the host (NumPy, worker processes)."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from etd.core.types import Array, EnvSpec, Key, PyTree, Transition


class DeviceEnv(Protocol):
    """One environment without a batch axis and without autoreset; hashable, pure, jit- and vmap-friendly."""

    @property
    def spec(self) -> EnvSpec: ...

    def reset(self, key: Key) -> tuple[PyTree, Array]:
        """A fresh episode: (state, first observation)."""
        ...

    def step(self, state: PyTree, action: Array, key: Key) -> tuple[PyTree, Transition]:
        """(state, what happened). Calling it after the episode's end is undefined."""
        ...

    def fingerprint(self, state: PyTree) -> Array:
        """[] uint32 naming the full state."""
        ...

    def render(self, state: PyTree) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """[height, width, 3] picture of one (host) state."""
        ...
