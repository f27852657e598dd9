"""No bonus: plain PPO."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp

from etd.bonuses.base import Bonus, BonusState, Scored
from etd.core.types import EnvSpec, Key, Rollout


@dataclass(frozen=True)
class NoBonus(Bonus):
    """b = 0 [T, N]: only the environment's reward counts.

    >>> NoBonus().refusal(spec=None)  # it refuses no environment
    ''
    """

    def init(self, key: Key, spec: EnvSpec, num_envs: int) -> BonusState:
        return BonusState()

    def score(self, state: BonusState, rollout: Rollout, key: Key) -> tuple[BonusState, Scored]:
        return state, Scored(jnp.zeros_like(rollout.step.reward), (), {})
