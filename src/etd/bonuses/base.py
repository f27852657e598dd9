"""The interface of an exploration bonus: a frozen dataclass of hyperparameters with pure methods.

A whole rollout can be scored at once because acting never reads the bonus and the model is frozen while the rollout is
collected. Scoring T single steps gives the same result as scoring T steps at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import optax

from etd.core.limits import limited
from etd.core.types import Array, EnvSpec, Key, Metrics, PyTree, Rollout
from etd.nets.blocks import NormKind
from etd.nets.fit import adam, fit
from etd.nets.model import Learner
from etd.nets.trunks import Trunk


class BonusState(NamedTuple):
    """Everything a bonus remembers, grouped by lifetime.

    >>> BonusState().memory
    ()
    """

    learner: Any = ()
    """Its model, a Learner; changes only in ``improve``."""
    memory: PyTree = ()
    """Per environment; cleared when an episode ends, kept from rollout to rollout."""
    extra: PyTree = ()
    """Global to the run: moments, queues."""


class Scored(NamedTuple):
    """The bonus of a rollout.

    >>> import jax.numpy as jnp
    >>> Scored(bonus=jnp.zeros((16, 4)), trace=(), metrics={}).bonus.shape  # [T, N]
    (16, 4)
    """

    bonus: Array
    """[T, N] before standardising and scaling"""
    trace: PyTree
    """What training reuses, such as the model's recurrent states."""
    metrics: Metrics


@dataclass(frozen=True)
class Bonus(ABC):
    """A bonus without a model. Derive from LearnedBonus for one with a model.

    >>> @dataclass(frozen=True)
    ... class Still(Bonus):
    ...     '''Pays for staying: 1 where the observation did not change.'''
    ...
    ...     def init(self, key, spec, num_envs):
    ...         return BonusState()
    ...
    ...     def score(self, state, rollout, key):
    ...         same = (rollout.next_obs == rollout.obs[:-1]).reshape(*rollout.done.shape, -1).all(-1)  # [T, N]
    ...         return state, Scored(same.astype(float), trace=(), metrics={})
    >>> Still().needs
    frozenset()
    """

    @property
    def needs(self) -> frozenset[str]:
        """Optional rollout fields it reads: "features", "logits"."""
        return frozenset()

    def refusal(self, spec: EnvSpec) -> str:
        """Why it does not support this environment; empty if it does."""
        return ""

    @abstractmethod
    def init(self, key: Key, spec: EnvSpec, num_envs: int) -> BonusState: ...

    @abstractmethod
    def score(self, state: BonusState, rollout: Rollout, key: Key) -> tuple[BonusState, Scored]:
        """The bonus of every step. Uses the model in eval mode and returns it unchanged."""

    def improve(self, state: BonusState, rollout: Rollout, trace: PyTree, key: Key) -> tuple[BonusState, Metrics]:
        """Train the model on the rollout; does nothing without a model."""
        return state, {}


@dataclass(frozen=True)
class LearnedBonus(Bonus):
    """A bonus whose model is trained on every rollout, by ``loss`` over ``examples``.

    >>> import etd
    >>> etd.BONUSES["rnd"](learning_rate=1e-4, epochs=2).minibatch
    512
    """

    learning_rate: float = limited(3e-4, above=0)
    """of Adam"""
    epochs: int = limited(8, above=0)
    """passes over every rollout"""
    minibatch: int = limited(512, least=2)
    """examples per update"""
    max_grad_norm: float = limited(0.5, above=0)
    """longer gradients are scaled down to this norm"""
    norm: NormKind = "batch"
    """normalisation of the networks' layers"""
    trunk: Trunk = field(default_factory=Trunk)
    """maps observations to embeddings"""
    features: int = limited(64, above=0)
    """width of the trunk's embedding"""
    latent: int = limited(256, above=0)
    """width of the heads' hidden layer"""

    @abstractmethod
    def examples(self, state: BonusState, rollout: Rollout, trace: PyTree, key: Key) -> PyTree:
        """Training examples, leading axis T*N."""

    @abstractmethod
    def loss(self, net: Any, extra: PyTree, batch: PyTree, key: Key) -> tuple[Array, Metrics]:
        """(scalar, metrics) of a minibatch; ``net`` is in training mode, ``extra`` is the state's."""

    def optimiser(self) -> optax.GradientTransformation:
        return adam(self.learning_rate, self.max_grad_norm)

    def improve(self, state: BonusState, rollout: Rollout, trace: PyTree, key: Key) -> tuple[BonusState, Metrics]:
        example_key, fit_key = jax.random.split(key)
        rows = self.examples(state, rollout, trace, example_key)

        def loss(net: Any, batch: PyTree, key: Key) -> tuple[Array, Metrics]:
            return self.loss(net, state.extra, batch, key)

        learner: Learner = state.learner
        learner, metrics = fit(loss, self.optimiser(), learner, rows, fit_key, self.epochs, self.minibatch)
        return state._replace(learner=learner), metrics
