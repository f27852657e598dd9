"""Converts flax.nnx modules to pure arrays and back. No other file splits or merges a module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from jax.flatten_util import ravel_pytree

from etd.core.types import Array, Key, PyTree
from etd.nets.blocks import Drawn


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Learner:
    """A network in training: its structure (static) and its arrays, grouped by what updates them."""

    graph: Any = field(metadata={"static": True})
    params: PyTree
    """Updated by the optimiser."""
    stats: PyTree
    """BatchNorm's running statistics, updated by training-mode forward passes."""
    opt: PyTree
    """The optimiser's own state."""

    def net(self) -> Any:
        """The module in eval mode. Calling it cannot change this learner."""
        return _merge(self.graph, self.params, self.stats, training=False)

    def size(self) -> int:
        """Number of trainable parameters."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.params))


Loss = Callable[[Any, PyTree, Key], tuple[jax.Array, dict[str, jax.Array]]]
"""(module in training mode, minibatch, key) -> (scalar, metrics)."""


def create(build: Callable[[], nnx.Module], optimiser: optax.GradientTransformation, key: Key) -> Learner:
    """A fresh learner for the module that ``build`` returns; one random stream initialises all its Drawn weights."""
    net = build()
    bounds, shape = jax.tree.flatten(nnx.to_pure_dict(nnx.state(net, Drawn)))
    ends = np.cumsum([0] + [bound.size for bound in bounds])
    unit = jax.random.uniform(key, (int(ends[-1]),), minval=-1.0)
    drawn = [bound * unit[a:b].reshape(bound.shape) for bound, (a, b) in zip(bounds, pairwise(ends), strict=True)]
    nnx.update(net, nnx.State(jax.tree.unflatten(shape, drawn)))
    graph, *states = nnx.split(net, nnx.Param, nnx.BatchStat)
    params, stats = (nnx.to_pure_dict(state) for state in states)
    return Learner(graph, params, stats, optimiser.init(params))


Split = Callable[[Array], PyTree]
"""A vector of all parameters to the parameters."""


def flatten(learner: Learner) -> tuple[Learner, Split, Callable[[Learner], Learner]]:
    """The learner with its parameters, and whatever the optimiser keeps of each, in one vector; how to split that; and
    the way back."""
    vector, split = ravel_pytree(learner.params)
    structure: Any = jax.tree.structure(learner.params)

    def alike(node: PyTree) -> bool:
        return bool(structure == jax.tree.structure(node))

    def restore(flat: Learner) -> Learner:
        opt = jax.tree.map(lambda old, new: split(new) if alike(old) else new, learner.opt, flat.opt, is_leaf=alike)
        return replace(flat, params=split(flat.params), opt=opt)

    opt = jax.tree.map(lambda node: ravel_pytree(node)[0] if alike(node) else node, learner.opt, is_leaf=alike)
    return replace(learner, params=vector, opt=opt), split, restore


def descend(
    learner: Learner,
    optimiser: optax.GradientTransformation,
    loss: Loss,
    batch: PyTree,
    key: Key,
    split: Split | None = None,
) -> tuple[Learner, dict[str, jax.Array]]:
    """One optimiser step on one minibatch; ``split`` if the learner is flat."""

    def objective(params: PyTree) -> tuple[jax.Array, tuple[PyTree, dict[str, jax.Array]]]:
        net = _merge(learner.graph, params, learner.stats, training=True)
        value, metrics = loss(net, batch, key)
        stats = nnx.to_pure_dict(nnx.state(net, nnx.BatchStat))
        return value, (stats, metrics)

    params = split(learner.params) if split else learner.params
    (value, (stats, metrics)), grads = jax.value_and_grad(objective, has_aux=True)(params)
    grads = ravel_pytree(grads)[0] if split else grads
    updates, opt = optimiser.update(grads, learner.opt, learner.params)
    params = optax.apply_updates(learner.params, updates)
    learner = replace(learner, params=params, stats=stats, opt=opt)
    return learner, {"loss": value, "grad_norm": optax.tree.norm(grads), **metrics}


def _merge(graph: Any, params: PyTree, stats: PyTree, training: bool) -> Any:
    # copy=True gives variables of the current trace: nnx refuses to mutate those of an outer trace, as BatchNorm must.
    net = nnx.merge(graph, nnx.State(params), nnx.State(stats), copy=True)
    net.set_attributes(training=training, raise_if_not_found=False)
    return net
