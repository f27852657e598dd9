"""Episodic Novelty through Temporal Distance (Jiang et al., ICLR 2025).

    b(s_{t+1}) = min_{k <= t} d(s_k, s_{t+1})

over the states of this episode, where d is a quasimetric learned by contrasting states with their own futures: the
energy f(x, y) = c(y) - d(x, y), trained with the symmetrised InfoNCE loss, is optimal if d is the successor distance
log p(y|y) - log p(y|x). The potential c is used only for learning.

Each step is scored by its true next observation; at an episode's end that is its last observation, not the next
episode's first as in the authors' code, which rewards ending an episode (``ending="next"`` does the same). As in the
authors' code, the memory keeps the trunk's features as computed when the state was seen, and the encoder is applied to
them with the current weights.

Not in the paper: ``gap`` leaves out the states just before. Where states change little from step to step, one of
the last few is almost always the nearest, and the bonus is then paid for moving fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax.numpy as jnp
from flax import nnx

from etd.bonuses import energies, futures, memory
from etd.bonuses.base import BonusState, LearnedBonus, Scored
from etd.bonuses.representations import embed, flat
from etd.core.limits import limited
from etd.core.types import Array, EnvSpec, Key, Metrics, PyTree, Rollout
from etd.nets.blocks import Block, Linear, NormKind
from etd.nets.model import create
from etd.nets.trunks import Trunk


class Pair(NamedTuple):
    """A state and one from its future; leading axis T*N or B."""

    obs: Array
    future: Array


class DistanceNet(nnx.Module):
    """Trunk features [B, F], and from them an embedding [B, D] for the distance and a potential [B]."""

    def __init__(self, spec: EnvSpec, trunk: Trunk, features: int, latent: int, embedding: int, norm: NormKind) -> None:
        self.trunk = trunk.build(spec, features, norm)
        self.hidden = Block(features, latent, norm)
        self.embedding = Linear(latent, embedding)
        self.potential_hidden = Block(features, latent, norm)
        self.potential_out = Linear(latent, 1)

    def encode(self, features: Array) -> Array:
        return self.embedding(self.hidden(features))

    def potential(self, features: Array) -> Array:
        return self.potential_out(self.potential_hidden(features))[..., 0]


@dataclass(frozen=True)
class ETD(LearnedBonus):
    """The paper's bonus; its ablations are fields.

    >>> import jax.numpy as jnp
    >>> ETD(energy="l2").distance(jnp.zeros((2, 64)), jnp.ones((3, 64)))[0, 0]  # [A, D], [B, D] -> [A, B]
    Array(8., dtype=float32)
    """

    embedding: int = limited(64, above=0, even=True)
    """width D of the embedding in which distances are measured"""
    discount: float = limited(0.99, least=0, most=1)
    """discount of the sampled futures: the distance belongs to the successor measure with this discount"""
    energy: Literal["mrn+potential", "mrn", "l2", "cos", "dot"] = "mrn+potential"
    """the distance d, and whether a potential c is learned beside it"""
    objective: Literal["symmetric", "forward", "backward"] = "symmetric"
    """the InfoNCE loss: from states to futures, back, or the mean of both"""
    aggregate: Literal["min", "quantile10", "knn10", "knn10avg"] = "min"
    """how the distances from all states of the episode become one number"""
    gap: int = limited(1, least=1)
    """compare a state with those at least this many steps before it, and with the episode's first; 1 is the paper's"""
    symmetric: bool = False
    """drop MRN's asymmetric half"""
    ending: Literal["last", "next"] = "last"
    """which observation scores an episode's last step: its own last one, or the next episode's first"""

    def init(self, key: Key, spec: EnvSpec, num_envs: int) -> BonusState:
        def build() -> DistanceNet:
            return DistanceNet(spec, self.trunk, self.features, self.latent, self.embedding, self.norm)

        seen = memory.empty(num_envs, spec.max_steps + 1, self.features)
        return BonusState(create(build, self.optimiser(), key), seen)

    def score(self, state: BonusState, rollout: Rollout, key: Key) -> tuple[BonusState, Scored]:
        net: DistanceNet = state.learner.net()
        successors = rollout.next_obs if self.ending == "last" else rollout.obs[1:]
        present, after = embed(net.trunk, rollout.obs[:-1]), embed(net.trunk, successors)
        seen, bonus = memory.recall(state.memory, present, after, rollout.done, self.nearest, net.encode)
        return state._replace(memory=seen), Scored(bonus, (), {"memory_filled": memory.occupancy(seen)})

    def examples(self, state: BonusState, rollout: Rollout, trace: PyTree, key: Key) -> Pair:
        ahead = futures.sample(key, rollout.done, self.discount)
        return flat(Pair(rollout.obs[:-1], futures.pick(rollout.next_obs, ahead)))

    def loss(self, net: DistanceNet, extra: PyTree, batch: Pair, key: Key) -> tuple[Array, Metrics]:
        features = net.trunk(jnp.concatenate(batch))
        x, y = jnp.split(net.encode(features), 2)
        logits = -self.distance(x, y)
        if self.energy == "mrn+potential":
            logits += net.potential(jnp.split(features, 2)[1])
        # Grids repeat states, so several futures may fit equally well: a prediction is right if no other beats it.
        accuracy = (energies.diagonal(logits) >= logits.max(1)).mean()
        return energies.LOSSES[self.objective](logits), {"accuracy": accuracy}

    def distance(self, x: Array, y: Array) -> Array:
        """d(x_a -> y_b) [A, B] of embeddings x [A, D], y [B, D]."""
        if self.symmetric and self.energy.startswith("mrn"):
            return energies.mrn_symmetric(x, y)
        return energies.DISTANCES[self.energy](x, y)

    def nearest(self, past: Array, new: Array, stored: Array) -> Array:
        """The bonus [B] of embeddings new [B, D] among those past [A, D] that are ``stored`` [A, B], oldest first."""
        if self.gap > 1:
            place = jnp.cumsum(stored, 0)  # from 1; the last is the state one step before
            stored = stored & ((place == 1) | (place <= place[-1] - self.gap + 1))
        return energies.AGGREGATES[self.aggregate](self.distance(past, new), stored)
