"""Gaussian noise on observations: no two are identical, which defeats count-based bonuses."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from etd.core.keys import named
from etd.core.types import Array, EnvSpec, Key, PyTree, Transition
from etd.envs.base import DeviceEnv


@dataclass(frozen=True)
class Noisy:
    """Adds N(0, sigma^2) to every entry, on the raw scale of the observation, without clipping or rounding.

    ``sigma`` is a standard deviation. The paper states a variance of 0.1 (sigma 0.316); its code uses 0.1 as the
    standard deviation.
    """

    env: DeviceEnv
    sigma: float

    @property
    def spec(self) -> EnvSpec:
        """The environment's spec, with float observations."""
        return replace(self.env.spec, obs_dtype="float32")

    def reset(self, key: Key) -> tuple[PyTree, Array]:
        """The level is the one the environment generates from the same key."""
        state, obs = self.env.reset(key)
        return state, self._blur(obs, key)

    def step(self, state: PyTree, action: Array, key: Key) -> tuple[PyTree, Transition]:
        """The environment's step with a noisy observation. The fingerprint is still that of the true state."""
        state, transition = self.env.step(state, action, key)
        return state, transition._replace(next_obs=self._blur(transition.next_obs, key))

    def _blur(self, obs: Array, key: Key) -> Array:
        noise = jax.random.normal(named(key, "noise"), obs.shape)
        return obs.astype(jnp.float32) + self.sigma * noise
