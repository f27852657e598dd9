"""The recurrent actor-critic: trunk, GRU, and two one-block heads on the shared recurrent state."""

from __future__ import annotations

from typing import NamedTuple

from flax import nnx

from etd.core.types import Array, EnvSpec
from etd.nets.blocks import GRU, Block, Linear, NormKind
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

    def __init__(self, spec: EnvSpec, features: int, latent: int, norm: NormKind, head_norm: NormKind):
        self.trunk = trunk(spec, features, norm)
        self.gru = GRU(features, features)
        self.actor = Block(features, latent, head_norm)
        self.critic = Block(features, latent, head_norm)
        self.action_head = ActionHead(latent, spec.action)
        self.value_head = Linear(latent, 1, bound=0.0)

    def __call__(self, obs: Array, hidden: Array) -> Output:
        features = self.trunk(obs)
        hidden = self.gru(features, hidden)
        policy = self.action_head(self.actor(hidden))
        value = self.value_head(self.critic(hidden))[..., 0]
        return Output(policy, value, hidden, features)
