"""NGU, never give up (Badia et al., 2020): episodic novelty by nearest neighbours, times lifelong novelty by RND.

    b = 1 / (sqrt(sum_{i in nearest k} K(phi(s_{t+1}), phi_i)) + c) * clip(1 + (e(s_t) - mean e) / std e, 1, 5)

    K(x, y) = eps / (max(|x - y|^2 / d^2 - xi, 0) + eps)

where d^2 is a running mean of the neighbours' squared distances and the first factor is 0 if the sum's root exceeds 8.
phi is the embedding of an inverse model; e, RND's error, reads the policy's embedding. Differences from the authors'
code: the neighbours are the nearest, not the oldest; d^2 is corrected for its start at zero. With a ``cell``, phi is
recurrent; the authors' code then gives e the policy's recurrent output, here it is still the trunk's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from etd.bonuses import energies, memory
from etd.bonuses.base import BonusState, Scored
from etd.bonuses.representations import InverseNet, Move, Path, RecurrentBonus, embed, flat, moves, outputs, unroll
from etd.bonuses.rnd import Distillation, Source, seen
from etd.core.limits import limited
from etd.core.moments import RunningMoments
from etd.core.types import Array, EnvSpec, Key, Metrics, PyTree, Rollout
from etd.nets.blocks import NormKind
from etd.nets.cells import Cell
from etd.nets.model import create
from etd.nets.trunks import Trunk


class NGUNet(nnx.Module):
    """An inverse model for the episodic part, a distilled network for the lifelong one."""

    def __init__(
        self, spec: EnvSpec, trunk: Trunk, cell: Cell, source: Source, features: int, latent: int, norm: NormKind
    ) -> None:
        self.inverse = InverseNet(spec, trunk, cell, features, latent, norm)
        self.error = Distillation(spec, trunk, source, features, latent, norm)


class Scale(NamedTuple):
    """The statistics that novelty is relative to; global to the run."""

    errors: RunningMoments
    distance: Array
    """[] decayed sum of the neighbours' mean squared distances"""
    weight: Array
    """[] the same sum of ones, so distance / weight is their mean"""


class NGUExample(NamedTuple):
    """Leading axis T*N or B."""

    move: Move
    seen: Array
    """the distilled network's input for the current state"""


@dataclass(frozen=True)
class NGU(RecurrentBonus):
    """The paper gives no hyperparameters for NGU; these are from the authors' code."""

    source: Source = "policy"
    """the networks read the policy's embedding, or have their own trunks"""
    neighbours: int = limited(10, above=0)
    """k"""
    kernel: float = limited(1e-4, above=0)
    """eps"""
    cluster: float = 0.008
    """xi: squared distances below this multiple of the mean count as zero"""
    constant: float = 1e-3
    """c"""
    limit: float = 8.0
    """no bonus if the similarity is above this"""
    clip: float = limited(5.0, above=0)
    """the largest lifelong factor"""
    momentum: float = limited(0.997, least=0, below=1)
    """of the mean squared distance, per step"""

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"features"}) if self.source == "policy" else frozenset()

    def init(self, key: Key, spec: EnvSpec, num_envs: int) -> BonusState:
        def build() -> NGUNet:
            return NGUNet(spec, self.trunk, self.cell, self.source, self.features, self.latent, self.norm)

        history = memory.empty(num_envs, spec.max_steps + 1, self.features)
        scale = Scale(RunningMoments.start(), *jnp.zeros(2))
        return BonusState(create(build, self.optimiser(), key), self.first(history, num_envs), scale)

    def score(self, state: BonusState, rollout: Rollout, key: Key) -> tuple[BonusState, Scored]:
        net: NGUNet = state.learner.net()
        present = embed(net.inverse.trunk, rollout.obs[:-1])
        after = embed(net.inverse.trunk, rollout.next_obs)
        path = self.unfold(state.memory, rollout.done.shape[1])
        way = unroll(net.inverse.cell, present, path.hidden, rollout.done)
        after = outputs(net.inverse.cell, after, way.following)
        history, distance = memory.recall(path.seen, way.output, after, rollout.done, self._nearest)
        scale, mean = self._follow(state.extra, distance)
        episodic = self._episodic(distance / (mean[:, None, None] + 1e-5))
        error = embed(net.error, seen(rollout, self.source).present)[..., 0]
        errors, tallies = scale.errors.scan(error)
        lifelong = jnp.clip(1 + jax.vmap(RunningMoments.standardise)(tallies, error), 1, self.clip)
        state = state._replace(memory=self.fold(Path(history, way.last)), extra=scale._replace(errors=errors))
        metrics = {"memory_filled": memory.occupancy(history), "lifelong_mean": lifelong.mean()}
        return state, Scored(episodic * lifelong, way.before, metrics)

    def examples(self, state: BonusState, rollout: Rollout, trace: PyTree, key: Key) -> NGUExample:
        return NGUExample(moves(rollout, trace), flat(seen(rollout, self.source).present))

    def loss(self, net: NGUNet, extra: PyTree, batch: NGUExample, key: Key) -> tuple[Array, Metrics]:
        inverse, metrics = net.inverse.inverse_loss(*net.inverse.pair(batch.move), batch.move.action)
        error = net.error(batch.seen).mean()
        return inverse + error, {**metrics, "inverse_loss": inverse, "distillation_loss": error}

    def _nearest(self, past: Array, new: Array, stored: Array) -> Array:
        """[B, k] squared distances, +inf where fewer are stored."""
        return energies.least(energies.squared(past, new), stored, self.neighbours)

    def _episodic(self, distance: Array) -> Array:
        """[T, N] from the neighbours' relative squared distances [T, N, k]."""
        kernel = self.kernel / (jnp.maximum(distance - self.cluster, 0) + self.kernel)
        similarity = jnp.sqrt(kernel.sum(-1)) + self.constant
        return jnp.where(similarity > self.limit, 0, 1 / similarity)

    def _follow(self, scale: Scale, distance: Array) -> tuple[Scale, Array]:
        """The scale after the rollout, and the mean squared distance after each step (that step included): [T]."""
        found = jnp.isfinite(distance)
        mean = (jnp.where(found, distance, 0).sum(-1) / found.sum(-1)).mean(1)

        def advance(sums: tuple[Array, Array], mean: Array) -> tuple[tuple[Array, Array], Array]:
            total = self.momentum * sums[0] + (1 - self.momentum) * mean
            weight = self.momentum * sums[1] + (1 - self.momentum)
            return (total, weight), total / weight

        sums, running = jax.lax.scan(advance, (scale.distance, scale.weight), mean)
        return Scale(scale.errors, *sums), running
