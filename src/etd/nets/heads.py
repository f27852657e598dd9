"""Action distributions: categorical for Discrete actions, diagonal Gaussian for a Box."""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx

from etd.core.types import Array, Box, Discrete, Key
from etd.nets.blocks import Linear


class Categorical(NamedTuple):
    """Sampled with the Gumbel-max trick."""

    logits: Array
    """[..., A]"""

    def sample(self, noise: Array) -> Array:
        return (self.logits + noise).argmax(-1)

    def log_prob(self, action: Array) -> Array:
        # A one-hot product, not an index: gathers are slow on accelerators and A is small.
        chosen = jax.nn.one_hot(action, self.logits.shape[-1])
        return (jax.nn.log_softmax(self.logits) * chosen).sum(-1)

    def entropy(self) -> Array:
        log_p = jax.nn.log_softmax(self.logits)
        return -(jnp.exp(log_p) * log_p).sum(-1)


class Gaussian(NamedTuple):
    """No squashing; actions are clipped to the box only when passed to the environment."""

    logits: Array
    """[..., size] the mean"""
    log_std: Array
    """[size]"""

    def sample(self, noise: Array) -> Array:
        return self.logits + jnp.exp(self.log_std) * noise

    def log_prob(self, action: Array) -> Array:
        z = (action - self.logits) / jnp.exp(self.log_std)
        return (-0.5 * z * z - self.log_std - 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self) -> Array:
        return jnp.broadcast_to((self.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(), self.logits.shape[:-1])


Distribution: TypeAlias = Categorical | Gaussian


def action_noise(key: Key, action: Discrete | Box, lead: tuple[int, ...]) -> Array:
    """The noise that ``sample`` turns into actions, for many steps at once: Gumbel [..., n] or normal [..., size].

    Drawing it for the whole rollout keeps random number generation out of the loop over steps.
    """
    if isinstance(action, Discrete):
        return jax.random.gumbel(key, (*lead, action.n))
    return jax.random.normal(key, (*lead, action.size))


class ActionHead(nnx.Module):
    """A linear layer from latent to distribution, initialised to zero."""

    def __init__(self, latent: int, action: Discrete | Box):
        self.linear = Linear(latent, action.n if isinstance(action, Discrete) else action.size, bound=0.0)
        self.log_std = nnx.Param(jnp.zeros(action.size)) if isinstance(action, Box) else None

    def __call__(self, x: Array) -> Distribution:
        logits = self.linear(x)
        return Categorical(logits) if self.log_std is None else Gaussian(logits, self.log_std[...])
