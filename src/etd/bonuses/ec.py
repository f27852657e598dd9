"""EC, episodic curiosity through reachability (Savinov et al., 2019).

    b(s_{t+1}) = alpha (beta - F{ C(s_i, s_{t+1}) : s_i in memory })

where the comparator C is the learned probability that two states are few steps apart and F is the 90th percentile. A
state enters memory only if F is below a threshold, which keeps the stored states far apart; when memory is full, a new
state overwrites a random one.

ETD's paper gives only alpha, beta and F; training pairs, threshold and capacity are those of EC's code: within 5 steps
is near, beyond 25 is far, both within one episode. EC's experiment with beta = 1 keeps every state; with a threshold of
0.5, which it uses elsewhere, a policy that does not move is paid as much here as one that does, and DoorKey-8x8 is not
learned. The comparator is one hidden layer on the trunk's embeddings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from etd.bonuses import futures
from etd.bonuses.base import BonusState, LearnedBonus, Scored
from etd.bonuses.representations import embed, flat
from etd.core.hashing import scramble
from etd.core.limits import limited
from etd.core.types import Array, EnvSpec, Key, Metrics, PyTree, Rollout
from etd.nets.blocks import Block, Linear, NormKind
from etd.nets.model import create
from etd.nets.trunks import Trunk


class Landmarks(NamedTuple):
    """The stored states, far from each other."""

    values: Array
    """[N, L, F] embeddings as computed when the state was seen"""
    filled: Array
    """[N] int32"""
    stored: Array
    """[N] uint32: how many were stored this episode; determines which one to overwrite"""


class LabelledPair(NamedTuple):
    """Two states of one episode; leading axis T*N or B."""

    first: Array
    second: Array
    near: Array
    """bool: few steps apart"""
    valid: Array
    """bool: False if a far state was drawn but the episode has none"""


class Comparator(nnx.Module):
    """A logit [B] that two states are few steps apart, from the trunk's features [B, F] of both."""

    def __init__(self, spec: EnvSpec, trunk: Trunk, features: int, latent: int, norm: NormKind) -> None:
        self.trunk = trunk.build(spec, features, norm)
        self.hidden = Block(2 * features, latent, norm)
        self.logit = Linear(latent, 1)

    def compare(self, first: Array, second: Array) -> Array:
        return self.logit(self.hidden(jnp.concatenate([first, second], -1)))[..., 0]


@dataclass(frozen=True)
class EC(LearnedBonus):
    """The memory is episodic."""

    scale: float = 1.0
    """alpha"""
    offset: float = 1.0
    """beta"""
    percentile: float = limited(90.0, least=0, most=100)
    """F"""
    threshold: float = 1.0
    """a state enters memory if its F is below this; 1 keeps every state"""
    capacity: int = limited(200, above=0)
    """states in memory; beyond that, a new one overwrites a random one"""
    near: int = limited(5, above=0)
    """states at most this many steps apart are near"""
    far: int = limited(25, above=0)
    """states more than this many steps apart are far"""

    def init(self, key: Key, spec: EnvSpec, num_envs: int) -> BonusState:
        def build() -> Comparator:
            return Comparator(spec, self.trunk, self.features, self.latent, self.norm)

        nothing = jnp.zeros(num_envs, jnp.int32)
        kept = Landmarks(jnp.zeros((num_envs, self.capacity, self.features)), nothing, nothing.astype(jnp.uint32))
        return BonusState(create(build, self.optimiser(), key), kept)

    def score(self, state: BonusState, rollout: Rollout, key: Key) -> tuple[BonusState, Scored]:
        net: Comparator = state.learner.net()

        def advance(kept: Landmarks, now: tuple[Array, Array, Array]) -> tuple[Landmarks, Array]:
            present, after, done = now
            kept = _keep(kept, present, kept.filled == 0)
            pairs = jnp.broadcast_to(after[:, None], kept.values.shape)
            similarity = self._percentile(jax.nn.sigmoid(net.compare(kept.values, pairs)), kept.filled)
            kept = _keep(kept, after, (similarity < self.threshold) | (self.threshold >= 1))
            return Landmarks(kept.values, *(jnp.where(done, 0, n) for n in (kept.filled, kept.stored))), similarity

        rows = (embed(net.trunk, rollout.obs[:-1]), embed(net.trunk, rollout.next_obs), rollout.done)
        kept, similarity = jax.lax.scan(advance, state.memory, rows)
        bonus = self.scale * (self.offset - similarity)
        return state._replace(memory=kept), Scored(bonus, (), {"memory_filled": kept.filled.max() / self.capacity})

    def examples(self, state: BonusState, rollout: Rollout, trace: PyTree, key: Key) -> LabelledPair:
        """Every state with another from its episode's future in this rollout, near or far by a coin flip."""
        coin_key, near_key, far_key, order_key = jax.random.split(key, 4)
        left = futures.steps_left(rollout.done)
        near = jax.random.bernoulli(coin_key, shape=left.shape)
        nearby = jax.random.randint(near_key, left.shape, 1, jnp.minimum(left, self.near) + 1)
        faraway = jax.random.randint(far_key, left.shape, self.far + 1, jnp.maximum(left, self.far + 1) + 1)
        ahead = jnp.minimum(jnp.where(near, nearby, faraway), left)
        present, future = rollout.obs[:-1], futures.pick(rollout.next_obs, ahead)
        swap = jax.random.bernoulli(order_key, shape=left.shape).reshape(*left.shape, *[1] * (present.ndim - 2))
        first, second = jnp.where(swap, future, present), jnp.where(swap, present, future)
        return flat(LabelledPair(first, second, near, near | (left > self.far)))

    def loss(self, net: Comparator, extra: PyTree, batch: LabelledPair, key: Key) -> tuple[Array, Metrics]:
        first, second = jnp.split(net.trunk(jnp.concatenate([batch.first, batch.second])), 2)
        logit = net.compare(first, second)
        count = jnp.maximum(batch.valid.sum(), 1)
        entropy = optax.sigmoid_binary_cross_entropy(logit, batch.near.astype(jnp.float32))
        right = batch.valid & ((logit > 0) == batch.near)
        return jnp.where(batch.valid, entropy, 0).sum() / count, {"accuracy": right.sum() / count}

    def _percentile(self, values: Array, filled: Array) -> Array:
        """The percentile of the first ``filled`` [N] of ``values`` [N, L], linearly interpolated: [N]."""
        ordered = jnp.sort(jnp.where(jnp.arange(values.shape[1]) < filled[:, None], values, jnp.inf))
        place = self.percentile / 100 * (filled - 1)
        below, above = jnp.floor(place).astype(jnp.int32), jnp.ceil(place).astype(jnp.int32)
        ends = jnp.take_along_axis(ordered, jnp.stack([below, above], 1), 1)
        return ends[:, 0] + (place - below) * (ends[:, 1] - ends[:, 0])


def _keep(kept: Landmarks, entry: Array, chosen: Array) -> Landmarks:
    """Store ``entry`` [N, F] where ``chosen`` [N]: after the others, or over a random one if memory is full."""
    capacity = kept.values.shape[1]
    random = (scramble(kept.stored) % capacity).astype(jnp.int32)
    slot = jnp.where(kept.filled < capacity, kept.filled, random)
    hit = chosen[:, None] & (jnp.arange(capacity) == slot[:, None])
    values = jnp.where(hit[:, :, None], entry[:, None], kept.values)
    return Landmarks(values, jnp.minimum(kept.filled + chosen, capacity), kept.stored + chosen)
