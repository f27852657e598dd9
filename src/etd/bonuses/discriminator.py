"""ETD's aggregate on the embedding of DEIR's discriminator: a representation ablation.

    b(s_{t+1}) = min_{k <= t} || phi(s_k) - phi(s_{t+1}) ||

over the states of this episode, where phi is trained to distinguish a step's true next observation from another one,
drawn from a queue of observations with a high bonus. With a ``cell``, the discriminator reads recurrent embeddings; the
bonus still compares the trunk's, as in the authors' code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from etd.bonuses import memory
from etd.bonuses.base import BonusState, Scored
from etd.bonuses.inverse import score_by_nearest
from etd.bonuses.representations import Move, RecurrentBonus, describe, flat, moves, width
from etd.core.limits import limited
from etd.core.moments import Moments
from etd.core.types import Array, EnvSpec, Key, Metrics, Rollout
from etd.nets.blocks import Block, Linear, NormKind
from etd.nets.cells import Cell
from etd.nets.model import create
from etd.nets.trunks import Trunk


class Queue(NamedTuple):
    """A ring buffer of the latest observations with a high bonus."""

    rows: Array
    """[Q, ...]"""
    added: Array
    """[] int32: how many were ever added"""
    moments: Moments
    """moments of the bonus in earlier rollouts"""


class DiscriminatorNet(nnx.Module):
    """A logit [B] that one observation follows another, from both embeddings and the action."""

    def __init__(self, spec: EnvSpec, trunk: Trunk, cell: Cell, features: int, latent: int, norm: NormKind) -> None:
        self.space = spec.action
        self.trunk = trunk.build(spec, features, norm)
        self.cell = cell.build(features, features)
        self.hidden = Block(2 * features + width(spec.action), latent, norm)
        self.logit = Linear(latent, 1)

    def judge(self, before: Array, action: Array, after: Array) -> Array:
        x = jnp.concatenate([before, after, describe(action, self.space)], -1)
        return self.logit(self.hidden(x))[..., 0]


class Trace(NamedTuple):
    """What training reuses; [T, N, ...]."""

    hidden: Array
    """the model's recurrent states before each observation"""
    bonus: Array
    """decides which observations enter the queue"""


@dataclass(frozen=True)
class Discriminator(RecurrentBonus):
    """Episodic; like ETD's, the memory keeps embeddings as computed when the state was seen."""

    queue: int = limited(100_000, above=0)
    """capacity of the queue, in observations"""

    def init(self, key: Key, spec: EnvSpec, num_envs: int) -> BonusState:
        def build() -> DiscriminatorNet:
            return DiscriminatorNet(spec, self.trunk, self.cell, self.features, self.latent, self.norm)

        seen = memory.empty(num_envs, spec.max_steps + 1, self.features)
        return BonusState(create(build, self.optimiser(), key), self.first(seen, num_envs), self.empty_queue(spec))

    def score(self, state: BonusState, rollout: Rollout, key: Key) -> tuple[BonusState, Scored]:
        state, scored = score_by_nearest(self, state, rollout)
        return state, scored._replace(trace=Trace(scored.trace, scored.bonus))

    def improve(self, state: BonusState, rollout: Rollout, trace: Trace, key: Key) -> tuple[BonusState, Metrics]:
        state = state._replace(extra=enqueue(state.extra, rollout, trace.bonus))
        state, metrics = super().improve(state, rollout, trace, key)
        size = state.extra.rows.shape[0]
        return state, {**metrics, "queue_filled": jnp.minimum(state.extra.added, size) / size}

    def examples(self, state: BonusState, rollout: Rollout, trace: Trace, key: Key) -> Move:
        return moves(rollout, trace.hidden)

    def loss(self, net: DiscriminatorNet, extra: Queue, batch: Move, key: Key) -> tuple[Array, Metrics]:
        fake, different = draw(extra, batch.next_obs, key)
        phi, after, other = jnp.split(net.trunk(jnp.concatenate([batch.obs, batch.next_obs, fake])), 3)
        output, hidden = net.cell(phi, batch.hidden)
        before = repeat(output)
        # If the output is the state, as in a GRU, it is repeated only once, to keep the order of gradient sums.
        hidden = before if hidden is output else jax.tree.map(repeat, hidden)
        reached, _ = net.cell(jnp.concatenate([after, other]), hidden)
        return discrimination(net.judge(before, repeat(batch.action), reached), different)

    def empty_queue(self, spec: EnvSpec) -> Queue:
        rows = jnp.zeros((self.queue, *spec.obs_shape), spec.obs_dtype)
        return Queue(rows, jnp.zeros((), jnp.int32), Moments.start())


def enqueue(queue: Queue, rollout: Rollout, bonus: Array) -> Queue:
    """Add the next observations whose bonus is at least the mean of earlier rollouts; in the first rollout, all."""
    size = queue.rows.shape[0]
    worth = ((bonus >= queue.moments.mean) | (queue.added == 0)).reshape(-1)
    order = jnp.cumsum(worth)
    # Only the last ``size`` additions are kept. Rows that are not added get an out-of-range slot and are dropped.
    slot = jnp.where(worth & (order > order[-1] - size), (queue.added + order - 1) % size, size)
    rows = queue.rows.at[slot].set(flat(rollout.next_obs).astype(queue.rows.dtype), mode="drop")
    return Queue(rows, queue.added + order[-1], queue.moments.update(bonus, 0.9))


def draw(queue: Queue, true: Array, key: Key) -> tuple[Array, Array]:
    """For each true next observation [B, ...] another one, and whether it differs [B]: the first of two draws that
    differs, else the second."""
    filled = jnp.minimum(queue.added, queue.rows.shape[0])
    first, second = queue.rows[jax.random.randint(key, (2, true.shape[0]), 0, filled)]

    def differs(one: Array) -> Array:
        return (one != true).reshape(true.shape[0], -1).any(1)

    chosen = differs(first).reshape(-1, *[1] * (true.ndim - 1))
    return jnp.where(chosen, first, second), differs(first) | differs(second)


def repeat(rows: Array) -> Array:
    """[B, ...] repeated: [2B, ...]."""
    return jnp.concatenate([rows, rows])


def discrimination(logit: Array, different: Array) -> tuple[Array, Metrics]:
    """Cross-entropy of true next observations (first half of ``logit`` [2B]) and others (second half, where
    ``different``).

    The mean of both halves' means, with the second multiplied by B over the number of its examples.
    """
    true, fake = jnp.split(logit, 2)
    count = jnp.maximum(different.sum(), 1)
    weight = true.shape[0] / count
    on_true = optax.sigmoid_binary_cross_entropy(true, jnp.ones_like(true)).mean()
    on_fake = jnp.where(different, optax.sigmoid_binary_cross_entropy(fake, jnp.zeros_like(fake)), 0).sum() / count
    right = (true > 0).sum() + (different & (fake <= 0)).sum()
    return (on_true + weight * on_fake) / 2, {"accuracy": right / (true.shape[0] + different.sum())}
