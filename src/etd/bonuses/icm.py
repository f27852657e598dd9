"""Intrinsic curiosity module (Pathak et al., 2017): pays for steps whose outcome the model did not foresee.

    b = 1/2 || h(phi(s_t), a_t) - phi(s_{t+1}) ||^2

with phi learned by telling the action from both ends of a step, so that it holds what the agent can influence. The
loss is 0.8 of the inverse model's plus 0.2 of the forward model's; the latter also moves the embedding it foretells.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp

from etd.bonuses.base import BonusState, LearnedBonus, Scored
from etd.bonuses.representations import DynamicsNet, Move, moves
from etd.core.types import Array, EnvSpec, Key, Metrics, PyTree, Rollout
from etd.nets.model import create


@dataclass(frozen=True)
class ICM(LearnedBonus):
    """Global: nothing is forgotten at an episode's end."""

    forward: float = 0.2
    """the forward model's share of the loss"""

    def init(self, key: Key, spec: EnvSpec, num_envs: int) -> BonusState:
        def build() -> DynamicsNet:
            return DynamicsNet(spec, self.features, self.latent, self.norm)

        return BonusState(create(build, self.optimiser(), key))

    def score(self, state: BonusState, rollout: Rollout, key: Key) -> tuple[BonusState, Scored]:
        net: DynamicsNet = state.learner.net()
        steps = moves(rollout)
        present, after = net.pair(steps)
        error = _error(net, present, after, steps.action)
        return state, Scored(error.reshape(rollout.done.shape), (), {})

    def examples(self, state: BonusState, rollout: Rollout, trace: PyTree, key: Key) -> Move:
        return moves(rollout)

    def loss(self, net: DynamicsNet, extra: PyTree, batch: Move, key: Key) -> tuple[Array, Metrics]:
        present, after = net.pair(batch)
        inverse, metrics = net.inverse_loss(present, after, batch.action)
        forward = _error(net, present, after, batch.action).mean()
        loss = (1 - self.forward) * inverse + self.forward * forward
        return loss, {**metrics, "inverse_loss": inverse, "forward_loss": forward}


def _error(net: DynamicsNet, present: Array, after: Array, action: Array) -> Array:
    return jnp.square(net.predict_next(present, action) - after).sum(-1) / 2
