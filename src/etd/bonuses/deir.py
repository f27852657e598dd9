"""DEIR, discriminative-model-based episodic intrinsic reward (Wan et al., 2023).

    b(s_{t+1}) = min_{k <= t} || phi(s_k) - phi(s_{t+1}) ||^2 / ( || h_{k-1} - h_t || + 1e-6 )

over the states of this episode, where phi is the trunk's embedding and h_k the model's own recurrent state after it has
seen s_0 .. s_k (zero before): the less two trajectories differ, the more the difference between their states counts.
The model is trained to distinguish a step's true next observation from another one in a queue, with recurrent states
recomputed over two steps from the stored one. Without a cell, phi(s_k) replaces h_k, as in the authors' code.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import jax.numpy as jnp

from etd.bonuses import energies, memory
from etd.bonuses.base import BonusState, Scored
from etd.bonuses.discriminator import Discriminator, DiscriminatorNet, Trace
from etd.bonuses.representations import Path, embed, unroll
from etd.core.types import Array, EnvSpec, Key, Rollout
from etd.nets.cells import GRU, Cell
from etd.nets.model import create


@dataclass(frozen=True)
class DEIR(Discriminator):
    """The memory is episodic, the queue and the model are global."""

    cell: Cell = field(default_factory=GRU)
    """the model's memory from step to step"""

    def init(self, key: Key, spec: EnvSpec, num_envs: int) -> BonusState:
        def build() -> DiscriminatorNet:
            return DiscriminatorNet(spec, self.trunk, self.cell, self.features, self.latent, self.norm)

        size = self.features + (self.cell.width(self.features) or self.features)
        seen = memory.empty(num_envs, spec.max_steps + 1, size)  # entries: phi and the h before it
        return BonusState(create(build, self.optimiser(), key), self.first(seen, num_envs), self.empty_queue(spec))

    def score(self, state: BonusState, rollout: Rollout, key: Key) -> tuple[BonusState, Scored]:
        net: DiscriminatorNet = state.learner.net()
        present, after = embed(net.trunk, rollout.obs[:-1]), embed(net.trunk, rollout.next_obs)
        path = self.unfold(state.memory, rollout.done.shape[1])
        way = unroll(net.cell, present, path.hidden, rollout.done)
        before, following = way.before, way.following
        if not before.shape[-1]:
            # The first row is stored only where an episode starts, so the previous rollout does not matter.
            before = jnp.zeros_like(present).at[1:].set(jnp.where(rollout.done[:-1, :, None], 0, present[:-1]))
            following = present
        present, after = jnp.concatenate([present, before], -1), jnp.concatenate([after, following], -1)
        seen, bonus = memory.recall(path.seen, present, after, rollout.done, self._nearest)
        state = state._replace(memory=self.fold(Path(seen, way.last)))
        return state, Scored(bonus, Trace(way.before, bonus), {"memory_filled": memory.occupancy(seen)})

    def _nearest(self, past: Array, new: Array, stored: Array) -> Array:
        phi, h = slice(0, self.features), slice(self.features, None)
        apart = jnp.sqrt(energies.squared(past[:, h], new[:, h]))
        return energies.minimum(energies.squared(past[:, phi], new[:, phi]) / (apart + 1e-6), stored)
