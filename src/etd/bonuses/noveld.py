"""NovelD (Zhang et al., 2021): rewards crossing from familiar to novel states, once per episode.

    b = max(e(s_{t+1}) - alpha e(s_t), beta) 1[N_e(s_{t+1}) = 1]

where e is RND's prediction error. The table of methods in ETD's paper omits alpha; its hyperparameters and code have
it. An episode's last step gets no bonus if e reads the policy's embedding, which does not exist for a final
observation.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp

from etd.bonuses import memory, visits
from etd.bonuses.base import BonusState, Scored
from etd.bonuses.representations import embed, flat
from etd.bonuses.rnd import RND, Distillation, Seen, seen
from etd.core.limits import limited
from etd.core.types import Array, EnvSpec, Key, Metrics, PyTree, Rollout


@dataclass(frozen=True)
class NovelD(RND):
    """RND's model, applied at both ends of a step."""

    fraction: float = limited(0.5, least=0)
    """alpha: how much of the current state's novelty is subtracted"""
    floor: float = 0.0
    """beta: the minimum difference"""

    def init(self, key: Key, spec: EnvSpec, num_envs: int) -> BonusState:
        return super().init(key, spec, num_envs)._replace(memory=visits.empty(num_envs, spec.max_steps))

    def score(self, state: BonusState, rollout: Rollout, key: Key) -> tuple[BonusState, Scored]:
        net: Distillation = state.learner.net()
        ends = seen(rollout, self.source)
        before, after = embed(net, ends.present)[..., 0], embed(net, ends.after)[..., 0]
        episode, count = visits.count(state.memory, rollout)
        novelty = jnp.maximum(after - self.fraction * before, self.floor)
        bonus = jnp.where(ends.known & (count == 1), novelty, 0)
        return state._replace(memory=episode), Scored(bonus, (), {"memory_filled": memory.occupancy(episode)})

    def examples(self, state: BonusState, rollout: Rollout, trace: PyTree, key: Key) -> Seen:
        return flat(seen(rollout, self.source))

    def loss(self, net: Distillation, extra: PyTree, batch: Seen, key: Key) -> tuple[Array, Metrics]:
        before, after = jnp.split(net(jnp.concatenate([batch.present, batch.after])), 2)
        known = batch.known.sum()
        return (before.mean() + jnp.where(batch.known, after, 0).sum() / jnp.maximum(known, 1)) / 2, {}
