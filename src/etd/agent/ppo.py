"""Proximal policy optimisation on single transitions with stored recurrent states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from etd.agent.gae import advantages
from etd.agent.policy import ActorCritic, Output
from etd.core.moments import Moments
from etd.core.types import Array, EnvSpec, Key, Metrics, Rollout
from etd.nets.blocks import NormKind
from etd.nets.fit import adam, fit
from etd.nets.model import Learner, create


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
    """The paper's PPO. The update draws single transitions, each with its recurrent state of rollout time, so gradients
    do not flow through time; one value head and one discount serve the summed reward."""

    learning_rate: float = 3e-4
    epochs: int = 4
    minibatch: int = 512
    discount: float = 0.99
    gae_lambda: float = 0.95
    """lambda of the advantage estimate"""
    clip: float = 0.2
    value_clip: float = 0.0
    """how far a value may move from its rollout-time estimate; 0 leaves it free"""
    entropy_coef: float = 5e-4
    value_coef: float = 0.5
    max_grad_norm: float = 0.5
    features: int = 64
    latent: int = 128
    """width of the policy's and the value's hidden layer (the paper's; the authors' code has 256)"""
    norm: NormKind = "batch"
    head_norm: NormKind | None = None
    """of the policy's and the value's hidden layer; None: as ``norm``"""
    advantage_norm: Literal["running", "minibatch", "none"] = "running"
    """running: decayed moments over rollouts, with one mean per environment and one variance, as the authors' code"""
    bootstrap_timeouts: bool = False
    """False: a time-out counts as a termination, as the authors' code; True: it is worth the value of its last state"""

    def init(self, key: Key, spec: EnvSpec) -> Learner:
        def build() -> ActorCritic:
            return ActorCritic(spec, self.features, self.latent, self.norm, self.head_norm or self.norm)

        return create(build, self.optimiser(), key)

    def optimiser(self) -> optax.GradientTransformation:
        return adam(self.learning_rate, self.max_grad_norm)

    def improve(
        self, learner: Learner, moments: Moments, rollout: Rollout, reward: Array, key: Key
    ) -> tuple[Learner, Moments, Metrics]:
        """One iteration's update on the mixed ``reward`` [T, N]; ``moments`` are those of the advantages."""
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
        rows = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), rows)
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
        """V of the true last observation where the time limit alone ended an episode, 0 elsewhere. [T, N]"""
        net = learner.net()
        flat = jax.tree.map(
            lambda x: x.reshape(-1, *x.shape[2:]), (rollout.obs[:-1], rollout.hidden[:-1], rollout.next_obs)
        )
        obs, hidden, next_obs = flat
        value = net(next_obs, net(obs, hidden).hidden).value.reshape(rollout.done.shape)
        return jnp.where(rollout.step.truncated & ~rollout.step.terminated, value, 0.0)
