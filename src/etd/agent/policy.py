"""The recurrent actor-critic: trunk, GRU, and two one-block heads on the shared recurrent state."""

from __future__ import annotations

from typing import NamedTuple

from flax import nnx

from etd.core.types import Array, EnvSpec
from etd.nets.blocks import GRU, Block, NormKind, linear
from etd.nets.heads import ActionHead, Distribution
from etd.nets.trunks import trunk


class Output(NamedTuple):
    """What the policy says of a batch of observations."""

    policy: Distribution
    value: Array
    """[B]"""
    hidden: Array
    """[B, H] recurrent state after the observations"""
    features: Array
    """[B, F] the trunk's embedding of the observations"""


class ActorCritic(nnx.Module):
    """obs [B, ...], hidden [B, H] -> Output. The recurrent state is as wide as the features."""

    def __init__(self, spec: EnvSpec, features: int, latent: int, norm: NormKind, rngs: nnx.Rngs):
        self.trunk = trunk(spec, features, norm, rngs)
        self.gru = GRU(features, features, rngs)
        self.actor = Block(features, latent, norm, rngs)
        self.critic = Block(features, latent, norm, rngs)
        self.action_head = ActionHead(latent, spec.action, rngs)
        self.value_head = linear(latent, 1, rngs, zero=True)

    def __call__(self, obs: Array, hidden: Array) -> Output:
        features = self.trunk(obs)
        hidden = self.gru(features, hidden)
        policy = self.action_head(self.actor(hidden))
        value = self.value_head(self.critic(hidden))[..., 0]
        return Output(policy, value, hidden, features)
