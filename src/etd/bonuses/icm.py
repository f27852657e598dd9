"""Intrinsic curiosity module (Pathak et al., 2017): rewards steps whose outcome the model did not predict.

    b = 1/2 || h(phi(s_t), a_t) - phi(s_{t+1}) ||^2

with phi learned by predicting the action from both ends of a step, so it captures what the agent can influence. The
loss is 0.8 of the inverse model's plus 0.2 of the forward model's; the latter also trains the embedding it predicts.
With a ``cell``, phi is recurrent, in the bonus and the losses.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp

from etd.bonuses.base import BonusState, Scored
from etd.bonuses.representations import DynamicsNet, Move, Path, RecurrentBonus, embed, moves, unroll
from etd.core.limits import limited
from etd.core.types import Array, EnvSpec, Key, Metrics, PyTree, Rollout
from etd.nets.model import create


@dataclass(frozen=True)
class ICM(RecurrentBonus):
    """Global: only a cell's state is reset at an episode's end."""

    forward: float = limited(0.2, least=0)
    """the forward model's share of the loss"""

    def init(self, key: Key, spec: EnvSpec, num_envs: int) -> BonusState:
        def build() -> DynamicsNet:
            return DynamicsNet(spec, self.trunk, self.cell, self.features, self.latent, self.norm)

        return BonusState(create(build, self.optimiser(), key), self.first((), num_envs))

    def score(self, state: BonusState, rollout: Rollout, key: Key) -> tuple[BonusState, Scored]:
        net: DynamicsNet = state.learner.net()
        path = self.unfold(state.memory, rollout.done.shape[1])
        way = unroll(net.cell, embed(net.trunk, rollout.obs[:-1]), path.hidden, rollout.done)
        steps = moves(rollout, way.before)
        present, after = net.pair(steps)
        error = _error(net, present, after, steps.action)
        state = state._replace(memory=self.fold(Path((), way.last)))
        return state, Scored(error.reshape(rollout.done.shape), way.before, {})

    def examples(self, state: BonusState, rollout: Rollout, trace: PyTree, key: Key) -> Move:
        return moves(rollout, trace)

    def loss(self, net: DynamicsNet, extra: PyTree, batch: Move, key: Key) -> tuple[Array, Metrics]:
        present, after = net.pair(batch)
        inverse, metrics = net.inverse_loss(present, after, batch.action)
        forward = _error(net, present, after, batch.action).mean()
        loss = (1 - self.forward) * inverse + self.forward * forward
        return loss, {**metrics, "inverse_loss": inverse, "forward_loss": forward}


def _error(net: DynamicsNet, present: Array, after: Array, action: Array) -> Array:
    return jnp.square(net.predict_next(present, action) - after).sum(-1) / 2
