"""The recurrent actor-critic: trunk, cell, and two one-block heads on the cell's output."""

from __future__ import annotations

from typing import NamedTuple

from flax import nnx

from etd.core.types import Array, EnvSpec
from etd.nets.blocks import Block, Linear, NormKind
from etd.nets.cells import Cell
from etd.nets.heads import ActionHead, Distribution
from etd.nets.trunks import Trunk


class Output(NamedTuple):
    """The network's output for a batch of observations."""

    policy: Distribution
    value: Array
    """[B]"""
    hidden: Array
    """[B, H] recurrent state after the observations"""
    features: Array
    """[B, F] the trunk's embedding of the observations"""


class ActorCritic(nnx.Module):
    """obs [B, ...], hidden [B, H] -> Output. The cell's output is as wide as the features."""

    def __init__(
        self, spec: EnvSpec, trunk: Trunk, cell: Cell, features: int, latent: int, norm: NormKind, head_norm: NormKind
    ):
        self.trunk = trunk.build(spec, features, norm)
        self.recurrent = cell.build(features, features)
        self.actor = Block(features, latent, head_norm)
        self.critic = Block(features, latent, head_norm)
        self.action_head = ActionHead(latent, spec.action)
        self.value_head = Linear(latent, 1, bound=0.0)

    def __call__(self, obs: Array, hidden: Array) -> Output:
        features = self.trunk(obs)
        output, hidden = self.recurrent(features, hidden)
        policy = self.action_head(self.actor(output))
        value = self.value_head(self.critic(output))[..., 0]
        return Output(policy, value, hidden, features)
