"""What learned bonuses share: embeddings of whole rollouts, and models of which action leads from state to state."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from etd.core.types import Array, Box, Discrete, EnvSpec, Metrics, Rollout
from etd.nets.blocks import Block, Linear, NormKind
from etd.nets.trunks import trunk

Rows = TypeVar("Rows")


class Move(NamedTuple):
    """A step with its true successor, also where an episode ends; leading axis T*N or B."""

    obs: Array
    action: Array
    next_obs: Array


def moves(rollout: Rollout) -> Move:
    """All steps of a rollout."""
    return flat(Move(rollout.obs[:-1], rollout.action, rollout.next_obs))


def flat(rows: Rows) -> Rows:
    """Leaves [T, N, ...] as [T*N, ...]."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), rows)


def embed(net: Callable[[Array], Array], rows: Array) -> Array:
    """``net`` of [T, N, ...] rows: [T, N, ...]."""
    return net(rows.reshape(-1, *rows.shape[2:])).reshape(*rows.shape[:2], -1)


def width(space: Discrete | Box) -> int:
    """How many numbers describe an action."""
    return space.n if isinstance(space, Discrete) else space.size


def describe(action: Array, space: Discrete | Box) -> Array:
    """An action as a network's input: one-hot, or the vector itself. [B, width]"""
    return jax.nn.one_hot(action, space.n) if isinstance(space, Discrete) else action


class InverseNet(nnx.Module):
    """An embedding of observations, trained so that the action can be told from two successive ones."""

    def __init__(self, spec: EnvSpec, features: int, latent: int, norm: NormKind) -> None:
        self.space = spec.action
        self.trunk = trunk(spec, features, norm)
        self.hidden = Block(2 * features, latent, norm)
        self.guess = Linear(latent, width(spec.action))

    def pair(self, batch: Move) -> tuple[Array, Array]:
        """Embeddings [B, F] of both ends, by one pass."""
        present, after = jnp.split(self.trunk(jnp.concatenate([batch.obs, batch.next_obs])), 2)
        return present, after

    def inverse_loss(self, present: Array, after: Array, action: Array) -> tuple[Array, Metrics]:
        """Cross-entropy of the action taken; for real-valued actions the squared error, summed over coordinates."""
        guess = self.guess(self.hidden(jnp.concatenate([present, after], -1)))
        if isinstance(self.space, Box):
            return jnp.square(guess - action).sum(-1).mean(), {}
        loss = optax.softmax_cross_entropy_with_integer_labels(guess, action).mean()
        return loss, {"accuracy": (guess.argmax(-1) == action).mean()}


class DynamicsNet(InverseNet):
    """Also foretells the next embedding from the present one and the action."""

    def __init__(self, spec: EnvSpec, features: int, latent: int, norm: NormKind) -> None:
        super().__init__(spec, features, latent, norm)
        self.forward_hidden = Block(features + width(spec.action), latent, norm)
        self.forward_out = Linear(latent, features)

    def predict_next(self, present: Array, action: Array) -> Array:
        return self.forward_out(self.forward_hidden(jnp.concatenate([present, describe(action, self.space)], -1)))
