"""A trunk, a PPO and a mix of one's own, each of which leaves a trace that a test can see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import etd
from etd.nets.blocks import Linear


class TwoLayers(nnx.Module):
    """[B, ...] to [B, features]."""

    def __init__(self, inputs: int, width: int, features: int) -> None:
        self.first, self.second = Linear(inputs, width), Linear(width, features)

    def __call__(self, obs: jax.Array) -> jax.Array:
        x = obs.astype(jnp.float32).reshape(obs.shape[0], -1)
        return jax.nn.relu(self.second(jax.nn.relu(self.first(x))))


@dataclass(frozen=True)
class Plain(etd.Trunk):
    """Two linear layers, whatever is observed."""

    width: int = etd.limited(16, above=0)

    def build(self, spec: etd.EnvSpec, features: int, norm: Any) -> nnx.Module:
        return TwoLayers(spec.obs_size, self.width, features)


@dataclass(frozen=True)
class MyPPO(etd.PPO):
    """PPO whose loss has a term of its own."""

    pull: float = etd.limited(0.1, least=0)

    def loss(self, net: Any, batch: Any, key: Any) -> tuple[Any, dict[str, Any]]:
        loss, metrics = super().loss(net, batch, key)
        return loss + self.pull * jnp.square(net(batch.obs, batch.hidden).value).mean(), {
            **metrics,
            "pulled": self.pull,
        }


@dataclass(frozen=True)
class RaisingPPO(etd.PPO):
    """PPO that cannot be trained with: whoever trains it hears of it."""

    def loss(self, net: Any, batch: Any, key: Any) -> tuple[Any, dict[str, Any]]:
        raise RuntimeError("my own loss was called")


@dataclass(frozen=True)
class HalfMix(etd.Mix):
    """Pays half of everything."""

    def __call__(self, moments: Any, reward: Any, bonus: Any) -> tuple[Any, Any]:
        moments, mixed = super().__call__(moments, reward, bonus)
        return moments, mixed / 2


class NotAPart:
    """Neither an environment nor a bonus."""
