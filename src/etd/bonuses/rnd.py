"""Random network distillation (Burda et al., 2019).

    b(s_t) = mean_k (f_k(s_t) - g_k(s_t))^2

where g is a fixed random network and f learns to predict it: rarely seen states are predicted badly. As in the paper's
experiments, both read the policy's embedding of the current observation; with ``source = own`` each has its own trunk,
as in RND's paper. The authors' code uses BatchNorm in both, which lets the fixed network drift; here it is LayerNorm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from etd.bonuses.base import BonusState, LearnedBonus, Scored
from etd.bonuses.representations import embed, flat
from etd.core.errors import UserError
from etd.core.types import Array, EnvSpec, Key, Metrics, PyTree, Rollout
from etd.nets.blocks import Block, Linear, Norm, NormKind
from etd.nets.model import create
from etd.nets.trunks import Trunk

Source = Literal["policy", "own"]


class Seen(NamedTuple):
    """The networks' inputs for every step: [T, N, F] policy embeddings or [T, N, ...] observations."""

    present: Array
    after: Array
    known: Array
    """[T, N] bool: False if ``after`` is not the next observation, because the policy never sees an episode's last"""


def seen(rollout: Rollout, source: Source) -> Seen:
    if source == "own":
        return Seen(rollout.obs[:-1], rollout.next_obs, jnp.ones_like(rollout.done))
    if rollout.features is None:
        raise UserError("The bonus reads the policy's features, which this rollout lacks. Make it with source='own'.")
    return Seen(rollout.features[:-1], rollout.features[1:], ~rollout.done)


class Distillation(nnx.Module):
    """The error [B] of a learning network f in predicting a fixed random network g."""

    def __init__(self, spec: EnvSpec, trunk: Trunk, source: Source, features: int, latent: int, norm: NormKind) -> None:
        steady: NormKind = "layer" if norm == "batch" else norm
        self.fixed_trunk = trunk.build(spec, features, steady) if source == "own" else None
        self.trunk = trunk.build(spec, features, steady) if source == "own" else None
        self.fixed = nnx.List([Block(features, latent, steady), Block(latent, latent, steady), Linear(latent, latent)])
        self.learned = nnx.List([Block(features, latent, steady), Linear(latent, latent)])
        self.fixed_norm, self.norm = Norm(steady, (latent,)), Norm(steady, (latent,))

    def __call__(self, seen: Array) -> Array:
        x = y = seen
        if self.fixed_trunk is not None and self.trunk is not None:
            x, y = self.fixed_trunk(seen), self.trunk(seen)
        for layer in self.fixed:
            x = layer(x)
        for layer in self.learned:
            y = layer(y)
        # Without gradients g stays fixed: Adam does not change a weight whose gradient has always been zero.
        target = jax.lax.stop_gradient(self.fixed_norm(x))
        return jnp.square(self.norm(y) - target).mean(-1)


@dataclass(frozen=True)
class RND(LearnedBonus):
    """Global: nothing is reset at an episode's end."""

    source: Source = "policy"
    """the networks read the policy's embedding, or have their own trunks"""

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"features"}) if self.source == "policy" else frozenset()

    def init(self, key: Key, spec: EnvSpec, num_envs: int) -> BonusState:
        def build() -> Distillation:
            return Distillation(spec, self.trunk, self.source, self.features, self.latent, self.norm)

        return BonusState(create(build, self.optimiser(), key))

    def score(self, state: BonusState, rollout: Rollout, key: Key) -> tuple[BonusState, Scored]:
        error = embed(state.learner.net(), seen(rollout, self.source).present)[..., 0]
        return state, Scored(error, (), {})

    def examples(self, state: BonusState, rollout: Rollout, trace: PyTree, key: Key) -> PyTree:
        return flat(seen(rollout, self.source).present)

    def loss(self, net: Distillation, extra: PyTree, batch: PyTree, key: Key) -> tuple[Array, Metrics]:
        return net(batch).mean(), {}
