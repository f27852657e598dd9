"""The seed axis and compilation. This is the only file that knows that there are several seeds."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

import jax
import jax.numpy as jnp

from etd.core.types import Metrics, PyTree
from etd.train import learn
from etd.train.experiment import Experiment
from etd.train.learn import TrainState


@lru_cache(maxsize=8)
def starter(experiment: Experiment) -> Callable[[], TrainState]:
    """A function that makes the first state of all seeds, leaves [S, ...]."""
    env = experiment.env.make()

    def begin() -> TrainState:
        seeds = experiment.seed + jnp.arange(experiment.seeds)
        return jax.vmap(lambda seed: learn.init(experiment, env, jax.random.key(seed)))(seeds)

    return _precise(experiment, jax.jit(begin))


@lru_cache(maxsize=8)
def advancer(experiment: Experiment, iterations: int) -> Callable[[TrainState], tuple[TrainState, Metrics]]:
    """A compiled function: the state after ``iterations``, and their metrics [iterations, S]. It consumes its input."""
    env = experiment.env.make()

    def advance(state: TrainState) -> tuple[TrainState, Metrics]:
        def one(state: TrainState, _: None) -> tuple[TrainState, Metrics]:
            return jax.vmap(partial(learn.iterate, experiment, env))(state)

        return jax.lax.scan(one, state, None, length=iterations)

    return _precise(experiment, jax.jit(advance, donate_argnums=0))


def shapes(experiment: Experiment) -> PyTree:
    """Shapes and types of the whole state, without computing anything."""
    return jax.eval_shape(starter(experiment))


def _precise(experiment: Experiment, function: Callable) -> Callable:
    """Trace and run ``function`` at the experiment's matmul precision."""

    def run(*args: PyTree) -> PyTree:
        with jax.default_matmul_precision(experiment.precision):
            return function(*args)

    return run
