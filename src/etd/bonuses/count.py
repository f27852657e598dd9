"""Episodic count: rewards observations not seen before in this episode.

    b(s_{t+1}) = 1[N_e(s_{t+1}) = 1]    or    1 / sqrt(N_e(s_{t+1}))

The paper found the indicator better. The authors' code always pays 1 at an episode's end, because it scores the next
episode's first observation there; here the true last observation is counted like any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp

from etd.bonuses import memory, visits
from etd.bonuses.base import Bonus, BonusState, Scored
from etd.core.types import EnvSpec, Key, Rollout


@dataclass(frozen=True)
class Count(Bonus):
    """No model; observations are compared exactly, so with noise every one is new."""

    form: Literal["first", "root"] = "first"
    """first: 1 where N_e = 1, else 0; root: 1 / sqrt(N_e)"""

    def init(self, key: Key, spec: EnvSpec, num_envs: int) -> BonusState:
        return BonusState(memory=visits.empty(num_envs, spec.max_steps))

    def score(self, state: BonusState, rollout: Rollout, key: Key) -> tuple[BonusState, Scored]:
        seen, count = visits.count(state.memory, rollout)
        bonus = (count == 1).astype(jnp.float32) if self.form == "first" else jax.lax.rsqrt(count.astype(jnp.float32))
        return state._replace(memory=seen), Scored(bonus, (), {"memory_filled": memory.occupancy(seen)})
