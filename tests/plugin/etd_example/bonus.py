"""A bonus of one's own: how far a step leads in the embedding of a network that learns to predict it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from flax import nnx

import etd
from etd.bonuses.representations import embed, flat
from etd.nets.blocks import Linear
from etd.nets.model import create


class Guess(nnx.Module):
    """Observations [B, ...] to features [B, F], and from them a guess of the next ones."""

    def __init__(self, spec: etd.EnvSpec, bonus: Impact) -> None:
        self.trunk = bonus.trunk.build(spec, bonus.features, bonus.norm)
        self.ahead = Linear(bonus.features, bonus.features)


@dataclass(frozen=True)
class Impact(etd.LearnedBonus):
    """scale times the distance between a state and its successor, as the trunk sees them."""

    scale: float = etd.limited(1.0, above=0)
    queue: int = -3
    """etd's own bonuses have a field of this name with limits, which are not this one's"""

    def init(self, key: Any, spec: etd.EnvSpec, num_envs: int) -> etd.BonusState:
        return etd.BonusState(create(lambda: Guess(spec, self), self.optimiser(), key))

    def score(self, state: etd.BonusState, rollout: etd.Rollout, key: Any) -> tuple[etd.BonusState, etd.Scored]:
        net = state.learner.net()
        apart = embed(net.trunk, rollout.next_obs) - embed(net.trunk, rollout.obs[:-1])
        return state, etd.Scored(self.scale * jnp.abs(apart).mean(-1), (), {})

    def examples(self, state: etd.BonusState, rollout: etd.Rollout, trace: Any, key: Any) -> Any:
        return flat((rollout.obs[:-1], rollout.next_obs))

    def loss(self, net: Guess, extra: Any, batch: Any, key: Any) -> tuple[Any, dict[str, Any]]:
        now, after = (net.trunk(obs) for obs in batch)
        return jnp.square(net.ahead(now) - after).mean(), {}
