"""Proximal policy optimisation on single transitions with stored recurrent states."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from etd.agent.gae import advantages
from etd.agent.policy import ActorCritic, Output
from etd.core.limits import limited
from etd.core.moments import Moments
from etd.core.types import Array, EnvSpec, Key, Metrics, Rollout
from etd.nets.blocks import NormKind
from etd.nets.cells import GRU, Cell
from etd.nets.fit import adam, fit
from etd.nets.model import Learner, create
from etd.nets.trunks import Trunk


class Examples(NamedTuple):
    """One row per transition; leading axis T*N, or B in a minibatch."""

    obs: Array
    hidden: Array
    action: Array
    log_prob: Array
    value: Array
    advantage: Array
    target: Array
    """advantage + value before the advantages are standardised"""


@dataclass(frozen=True)
class PPO:
    """The paper's PPO. Minibatches are single transitions with their recurrent states stored during the rollout, so
    gradients do not flow through time; the summed reward has one value head and one discount.

    A subclass may override ``loss`` ([B] examples to a scalar and metrics), ``improve`` or ``init``, and add fields:

    >>> @dataclass(frozen=True)
    ... class Cautious(PPO):
    ...     caution: float = 0.1
    ...
    ...     def loss(self, net, batch, key):
    ...         loss, metrics = super().loss(net, batch, key)
    ...         return loss + self.caution * metrics["kl"], metrics
    >>> Cautious(clip=0.1).caution
    0.1
    """

    learning_rate: float = limited(3e-4, above=0)
    epochs: int = limited(4, above=0)
    minibatch: int = limited(512, least=2)
    discount: float = limited(0.99, least=0, most=1)
    gae_lambda: float = limited(0.95, least=0, most=1)
    """lambda of generalised advantage estimation"""
    clip: float = limited(0.2, above=0)
    value_clip: float = limited(0.0, least=0)
    """how far a value may move from its rollout-time estimate; 0 disables clipping"""
    entropy_coef: float = limited(5e-4, least=0)
    value_coef: float = limited(0.5, least=0)
    max_grad_norm: float = limited(0.5, above=0)
    trunk: Trunk = field(default_factory=Trunk)
    """maps observations to features"""
    cell: Cell = field(default_factory=GRU)
    """the policy's memory from step to step"""
    features: int = limited(64, above=0)
    """width of the trunk's embedding and of the cell's output"""
    latent: int = limited(128, above=0)
    """width of the policy's and the value's hidden layer (as in the paper; the authors' code has 256)"""
    norm: NormKind = "batch"
    head_norm: NormKind | None = None
    """norm of the policy's and the value's hidden layer; None: same as ``norm``"""
    advantage_norm: Literal["running", "minibatch", "none"] = "running"
    """running: decayed moments over rollouts, with a mean per environment and one variance, as in the authors' code"""
    bootstrap_timeouts: bool = False
    """False: a time-out counts as a termination, as in the authors' code; True: bootstrap from its last state's
    value"""

    def init(self, key: Key, spec: EnvSpec) -> Learner:
        def build() -> ActorCritic:
            head_norm = self.head_norm or self.norm
            return ActorCritic(spec, self.trunk, self.cell, self.features, self.latent, self.norm, head_norm)

        return create(build, self.optimiser(), key)

    def optimiser(self) -> optax.GradientTransformation:
        return adam(self.learning_rate, self.max_grad_norm)

    def improve(
        self, learner: Learner, moments: Moments, rollout: Rollout, reward: Array, key: Key
    ) -> tuple[Learner, Moments, Metrics]:
        """One iteration's update on the mixed ``reward`` [T, N]; ``moments`` are the advantages' moments."""
        final = self.final_values(learner, rollout) if self.bootstrap_timeouts else None
        advantage = advantages(reward, rollout.value, rollout.done, self.discount, self.gae_lambda, final)
        target = advantage + rollout.value[:-1]
        if self.advantage_norm == "running":
            moments = moments.update(advantage, 0.9)
            advantage = moments.standardise(advantage)
        rows = Examples(
            rollout.obs[:-1],
            rollout.hidden[:-1],
            rollout.action,
            rollout.log_prob,
            rollout.value[:-1],
            advantage,
            target,
        )
        rows = jax.tree.map(_flat, rows)
        learner, metrics = fit(self.loss, self.optimiser(), learner, rows, key, self.epochs, self.minibatch)
        spread = jnp.var(target - rollout.value[:-1]) / (jnp.var(target) + 1e-8)
        return learner, moments, {**metrics, "explained_variance": 1 - spread}

    def loss(self, net: ActorCritic, batch: Examples, key: Key) -> tuple[Array, Metrics]:
        """-E min(A r, A clip(r, 1 +- clip)) - entropy_coef H + value_coef E (R - V)^2, with r the probability ratio."""
        out: Output = net(batch.obs, batch.hidden)
        advantage = batch.advantage
        if self.advantage_norm == "minibatch":
            advantage = (advantage - advantage.mean()) / (advantage.std(ddof=1) + 1e-5)
        log_ratio = out.policy.log_prob(batch.action) - batch.log_prob
        ratio = jnp.exp(log_ratio)
        clipped = jnp.clip(ratio, 1 - self.clip, 1 + self.clip)
        policy_loss = -jnp.minimum(advantage * ratio, advantage * clipped).mean()
        value = out.value
        if self.value_clip:
            value = batch.value + jnp.clip(value - batch.value, -self.value_clip, self.value_clip)
        value_loss = jnp.square(batch.target - value).mean()
        entropy = out.policy.entropy().mean()
        metrics = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "kl": ((ratio - 1) - log_ratio).mean(),
            "clip_fraction": (jnp.abs(ratio - 1) > self.clip).mean(),
        }
        return policy_loss - self.entropy_coef * entropy + self.value_coef * value_loss, metrics

    def final_values(self, learner: Learner, rollout: Rollout) -> Array:
        """V of the true last observation where only the time limit ended an episode, 0 elsewhere. [T, N]"""
        net = learner.net()
        obs, hidden, next_obs = map(_flat, (rollout.obs[:-1], rollout.hidden[:-1], rollout.next_obs))
        value = net(next_obs, net(obs, hidden).hidden).value.reshape(rollout.done.shape)
        return jnp.where(rollout.step.truncated & ~rollout.step.terminated, value, 0.0)


def _flat(rows: Array) -> Array:
    """[T, N, ...] as [T*N, ...]; the last axis may have width 0."""
    return rows.reshape(rows.shape[0] * rows.shape[1], *rows.shape[2:])
