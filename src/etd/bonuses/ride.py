"""RIDE (Raileanu and Rocktaeschel, 2020): rewards steps that change the state a lot, less for states seen often.

    b = || phi(s_{t+1}) - phi(s_t) ||_2 / sqrt(N_e(s_{t+1}))

with phi learned as in ICM, but with the loss weights of RIDE's code: 10 for the forward model's error (there a norm)
and 0.1 for the inverse model's. The next state is counted, as in RIDE's paper and code; the table of methods in ETD's
paper counts s_t. No experiment in that paper runs RIDE.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from etd.bonuses import memory, visits
from etd.bonuses.base import BonusState, LearnedBonus, Scored
from etd.bonuses.representations import DynamicsNet, Move, embed, moves
from etd.core.limits import limited
from etd.core.types import Array, EnvSpec, Key, Metrics, PyTree, Rollout
from etd.nets.cells import NoCell
from etd.nets.model import create


@dataclass(frozen=True)
class RIDE(LearnedBonus):
    """The count is episodic, the embedding global."""

    forward: float = limited(10.0, least=0)
    """weight of the forward model's error"""
    inverse: float = limited(0.1, least=0)
    """weight of the inverse model's cross-entropy"""

    def init(self, key: Key, spec: EnvSpec, num_envs: int) -> BonusState:
        def build() -> DynamicsNet:
            return DynamicsNet(spec, self.trunk, NoCell(), self.features, self.latent, self.norm)

        return BonusState(create(build, self.optimiser(), key), visits.empty(num_envs, spec.max_steps))

    def score(self, state: BonusState, rollout: Rollout, key: Key) -> tuple[BonusState, Scored]:
        net: DynamicsNet = state.learner.net()
        change = _norm(embed(net.trunk, rollout.next_obs) - embed(net.trunk, rollout.obs[:-1]))
        seen, count = visits.count(state.memory, rollout)
        bonus = change * jax.lax.rsqrt(count.astype(jnp.float32))
        return state._replace(memory=seen), Scored(bonus, (), {"memory_filled": memory.occupancy(seen)})

    def examples(self, state: BonusState, rollout: Rollout, trace: PyTree, key: Key) -> Move:
        return moves(rollout)

    def loss(self, net: DynamicsNet, extra: PyTree, batch: Move, key: Key) -> tuple[Array, Metrics]:
        present, after = net.pair(batch)
        inverse, metrics = net.inverse_loss(present, after, batch.action)
        forward = _norm(net.predict_next(present, batch.action) - after, floor=1e-8).mean()
        loss = self.inverse * inverse + self.forward * forward
        return loss, {**metrics, "inverse_loss": inverse, "forward_loss": forward}


def _norm(x: Array, floor: float = 0.0) -> Array:
    """Euclidean norm; ``floor`` under the root keeps the gradient finite at zero."""
    return jnp.sqrt(jnp.square(x).sum(-1) + floor)
