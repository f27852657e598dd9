"""DEIR, discriminative-model-based episodic intrinsic reward (Wan et al., 2023).

    b(s_{t+1}) = min_{k <= t} || phi(s_k) - phi(s_{t+1}) ||^2 / ( || h_{k-1} - h_t || + 1e-6 )

over the states of this episode, where phi is the trunk's embedding and h_k the model's own recurrent state after it has
seen s_0 .. s_k (zero before): a state counts for more the less the trajectory that led there differs. The model is
trained to tell a step's true successor from another observation of a queue, on recurrent states recomputed over two
steps from the stored one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from etd.bonuses import energies, memory
from etd.bonuses.base import BonusState, Scored
from etd.bonuses.discriminator import Discriminator, DiscriminatorNet, Queue, discrimination, draw, repeat
from etd.bonuses.memory import Memory
from etd.bonuses.representations import Move, embed, flat, moves
from etd.core.types import Array, EnvSpec, Key, Metrics, PyTree, Rollout
from etd.nets.blocks import GRU, NormKind
from etd.nets.model import create


class RecurrentNet(DiscriminatorNet):
    """The discriminator reads recurrent states, as wide as the trunk's embedding."""

    def __init__(self, spec: EnvSpec, features: int, latent: int, norm: NormKind) -> None:
        super().__init__(spec, features, latent, norm)
        self.gru = GRU(features, features)


class Path(NamedTuple):
    """What an environment remembers."""

    seen: Memory
    """entries: phi and the recurrent state before it"""
    hidden: Array
    """[N, F] the model's recurrent state before the next observation"""


class Trace(NamedTuple):
    """What training needs again; [T, N, ...]."""

    hidden: Array
    """recurrent states before each observation"""
    bonus: Array


class DEIRExample(NamedTuple):
    """Leading axis T*N or B."""

    move: Move
    hidden: Array


@dataclass(frozen=True)
class DEIR(Discriminator):
    """Episodic; its queue and model are global."""

    def init(self, key: Key, spec: EnvSpec, num_envs: int) -> BonusState:
        def build() -> RecurrentNet:
            return RecurrentNet(spec, self.features, self.latent, self.norm)

        seen = memory.empty(num_envs, spec.max_steps + 1, 2 * self.features)
        path = Path(seen, jnp.zeros((num_envs, self.features)))
        return BonusState(create(build, self.optimiser(), key), path, self.empty_queue(spec))

    def score(self, state: BonusState, rollout: Rollout, key: Key) -> tuple[BonusState, Scored]:
        net: RecurrentNet = state.learner.net()
        present, after = embed(net.trunk, rollout.obs[:-1]), embed(net.trunk, rollout.next_obs)

        def advance(hidden: Array, now: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
            phi, done = now
            following = net.gru(phi, hidden)
            return jnp.where(done[:, None], 0, following), (hidden, following)

        hidden, (before, following) = jax.lax.scan(advance, state.memory.hidden, (present, rollout.done))
        present, after = jnp.concatenate([present, before], -1), jnp.concatenate([after, following], -1)
        seen, bonus = memory.recall(state.memory.seen, present, after, rollout.done, _nearest)
        metrics = {"memory_filled": memory.occupancy(seen)}
        return state._replace(memory=Path(seen, hidden)), Scored(bonus, Trace(before, bonus), metrics)

    def examples(self, state: BonusState, rollout: Rollout, trace: Trace, key: Key) -> DEIRExample:
        return DEIRExample(moves(rollout), flat(trace.hidden))

    def loss(self, net: RecurrentNet, extra: Queue, batch: DEIRExample, key: Key) -> tuple[Array, Metrics]:
        move = batch.move
        fake, different = draw(extra, move.next_obs, key)
        phi, after, other = jnp.split(net.trunk(jnp.concatenate([move.obs, move.next_obs, fake])), 3)
        before = repeat(net.gru(phi, batch.hidden))
        logit = net.judge(before, repeat(move.action), net.gru(jnp.concatenate([after, other]), before))
        return discrimination(logit, different)

    def bonus_of(self, trace: PyTree) -> Array:
        return trace.bonus


def _nearest(past: Array, new: Array, stored: Array) -> Array:
    half = past.shape[-1] // 2
    apart = jnp.sqrt(energies.squared(past[:, half:], new[:, half:]))
    return energies.minimum(energies.squared(past[:, :half], new[:, :half]) / (apart + 1e-6), stored)
