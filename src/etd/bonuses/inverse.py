"""ETD's aggregate on the embedding of an inverse model: a representation ablation.

    b(s_{t+1}) = min_{k <= t} || phi(s_k) - phi(s_{t+1}) ||

over the states of this episode, where phi is trained to predict the action from both ends of a step. With a ``cell``,
the action is predicted from recurrent embeddings; the bonus still compares the trunk's, as in the authors' code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from etd.bonuses import energies, memory
from etd.bonuses.base import BonusState, Scored
from etd.bonuses.representations import InverseNet, Move, Path, RecurrentBonus, embed, moves, unroll
from etd.core.types import Array, EnvSpec, Key, Metrics, PyTree, Rollout
from etd.nets.model import create


@dataclass(frozen=True)
class Inverse(RecurrentBonus):
    """Episodic; like ETD's, the memory keeps embeddings as computed when the state was seen."""

    def init(self, key: Key, spec: EnvSpec, num_envs: int) -> BonusState:
        def build() -> InverseNet:
            return InverseNet(spec, self.trunk, self.cell, self.features, self.latent, self.norm)

        seen = memory.empty(num_envs, spec.max_steps + 1, self.features)
        return BonusState(create(build, self.optimiser(), key), self.first(seen, num_envs))

    def score(self, state: BonusState, rollout: Rollout, key: Key) -> tuple[BonusState, Scored]:
        return score_by_nearest(self, state, rollout)

    def examples(self, state: BonusState, rollout: Rollout, trace: PyTree, key: Key) -> Move:
        return moves(rollout, trace)

    def loss(self, net: InverseNet, extra: PyTree, batch: Move, key: Key) -> tuple[Array, Metrics]:
        return net.inverse_loss(*net.pair(batch), batch.action)


def nearest(past: Array, new: Array, stored: Array) -> Array:
    """[B] the Euclidean distance to the nearest stored entry."""
    return jnp.sqrt(energies.minimum(energies.squared(past, new), stored))


def score_by_nearest(bonus: RecurrentBonus, state: BonusState, rollout: Rollout) -> tuple[BonusState, Scored]:
    """By the distance of the trunk's embeddings; the trace is the recurrent states [T, N, H] before each one."""
    net: Any = state.learner.net()
    present, after = embed(net.trunk, rollout.obs[:-1]), embed(net.trunk, rollout.next_obs)
    path = bonus.unfold(state.memory, rollout.done.shape[1])
    seen, distance = memory.recall(path.seen, present, after, rollout.done, nearest)
    way = unroll(net.cell, present, path.hidden, rollout.done)
    state = state._replace(memory=bonus.fold(Path(seen, way.last)))
    return state, Scored(distance, way.before, {"memory_filled": memory.occupancy(seen)})
