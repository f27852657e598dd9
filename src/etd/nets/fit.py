"""The loop over epochs and minibatches, shared by PPO and every bonus."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from etd.core.types import Array, Key, Metrics, PyTree
from etd.nets.model import Learner, Loss, descend, flatten


class Uniform(optax.GradientTransformation):
    """An optimiser that treats all parameters alike, so ``fit`` may give it one vector of them: a few kernels per
    update instead of several per parameter."""


def adam(learning_rate: float, max_grad_norm: float) -> Uniform:
    """Adam with the paper's epsilon, after clipping the global gradient norm."""
    return Uniform(*optax.chain(optax.clip_by_global_norm(max_grad_norm), optax.adam(learning_rate, eps=1e-5)))


def fit(
    loss: Loss,
    optimiser: optax.GradientTransformation,
    learner: Learner,
    examples: PyTree,
    key: Key,
    epochs: int,
    minibatch: int,
) -> tuple[Learner, Metrics]:
    """Minimise ``loss`` over ``epochs`` fresh permutations of ``examples`` (leading axis T*N) in minibatches.

    Metrics are means over all minibatches.
    """
    count = jax.tree.leaves(examples)[0].shape[0]
    batches = count // minibatch
    split, restore = None, lambda learner: learner
    if isinstance(optimiser, Uniform):
        learner, split, restore = flatten(learner)

    names: list[str] = []

    def update(learner: Learner, order_and_key: tuple[Array, Key]) -> tuple[Learner, Array]:
        order, key = order_and_key
        batch = jax.tree.map(lambda leaf: leaf[order], examples)
        learner, metrics = descend(learner, optimiser, loss, batch, key, split)
        names[:] = metrics
        means = [jnp.mean(value) for value in metrics.values()]
        return learner, jnp.stack(means)  # one array: each would be a kernel of its own on a GPU

    order_key, loss_key = jax.random.split(key)
    orders = jax.vmap(lambda k: jax.random.permutation(k, count))(jax.random.split(order_key, epochs))
    orders = orders.reshape(epochs * batches, minibatch)
    learner, metrics = jax.lax.scan(update, learner, (orders, jax.random.split(loss_key, epochs * batches)))
    return restore(learner), dict(zip(names, metrics.mean(0), strict=True))
