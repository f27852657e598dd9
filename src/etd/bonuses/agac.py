"""AGAC, adversarially guided actor-critic (Flet-Berliac et al., 2021): rewards actions that an imitator did not expect.

    b = KL(pi(.|s_t) || pi_adv(.|s_t)) + beta / sqrt(N_e(s_{t+1}))

where the adversary pi_adv learns to imitate the rollout's policy, more slowly than the policy itself learns. AGAC's own
code adds log pi - log pi_adv to advantages and the divergence to value targets; here it is a reward, as in the table of
methods in ETD's paper, which neither runs AGAC nor gives a beta.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from etd.bonuses import memory, visits
from etd.bonuses.base import BonusState, LearnedBonus, Scored
from etd.bonuses.representations import embed, flat
from etd.core.errors import UserError
from etd.core.limits import limited
from etd.core.types import Array, Box, Discrete, EnvSpec, Key, Metrics, PyTree, Rollout
from etd.nets.blocks import Block, Linear, NormKind
from etd.nets.model import create
from etd.nets.trunks import Trunk


class Acted(NamedTuple):
    """A state and the policy's action logits there; leading axis T*N or B."""

    obs: Array
    logits: Array


class Adversary(nnx.Module):
    """obs [B, ...] -> action logits [B, A]; like the policy, it starts uniform."""

    def __init__(self, spec: EnvSpec, trunk: Trunk, actions: int, features: int, latent: int, norm: NormKind) -> None:
        self.trunk = trunk.build(spec, features, norm)
        self.hidden = Block(features, latent, norm)
        self.logits = Linear(latent, actions, bound=0.0)

    def __call__(self, obs: Array) -> Array:
        return self.logits(self.hidden(self.trunk(obs)))


@dataclass(frozen=True)
class AGAC(LearnedBonus):
    """The count is episodic, the adversary global."""

    learning_rate: float = limited(9e-5, above=0)
    """0.3 times the policy's, as in AGAC's code"""
    count: float = 1.0
    """beta"""

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"logits"})

    def refusal(self, spec: EnvSpec) -> str:
        if isinstance(spec.action, Box):
            return "AGAC needs discrete actions; this environment's actions are vectors."
        return ""

    def init(self, key: Key, spec: EnvSpec, num_envs: int) -> BonusState:
        assert isinstance(spec.action, Discrete)
        actions = spec.action.n

        def build() -> Adversary:
            return Adversary(spec, self.trunk, actions, self.features, self.latent, self.norm)

        return BonusState(create(build, self.optimiser(), key), visits.empty(num_envs, spec.max_steps))

    def score(self, state: BonusState, rollout: Rollout, key: Key) -> tuple[BonusState, Scored]:
        surprise = _divergence(_logits(rollout), embed(state.learner.net(), rollout.obs[:-1]))
        seen, count = visits.count(state.memory, rollout)
        bonus = surprise + self.count * jax.lax.rsqrt(count.astype(jnp.float32))
        metrics = {"memory_filled": memory.occupancy(seen), "divergence": surprise.mean()}
        return state._replace(memory=seen), Scored(bonus, (), metrics)

    def examples(self, state: BonusState, rollout: Rollout, trace: PyTree, key: Key) -> Acted:
        return flat(Acted(rollout.obs[:-1], _logits(rollout)))

    def loss(self, net: Adversary, extra: PyTree, batch: Acted, key: Key) -> tuple[Array, Metrics]:
        guess = net(batch.obs)
        agreed = (guess.argmax(-1) == batch.logits.argmax(-1)).mean()
        return _divergence(batch.logits, guess).mean(), {"accuracy": agreed}


def _logits(rollout: Rollout) -> Array:
    """[T, N, actions]"""
    if rollout.logits is None:
        raise UserError(
            "AGAC reads the policy's logits [T, N, actions], which this rollout lacks: _replace(logits=...)."
        )
    return rollout.logits


def _divergence(logits: Array, other: Array) -> Array:
    """KL(softmax logits || softmax other) over the last axis."""
    log_p, log_q = jax.nn.log_softmax(logits), jax.nn.log_softmax(other)
    return (jnp.exp(log_p) * (log_p - log_q)).sum(-1)
