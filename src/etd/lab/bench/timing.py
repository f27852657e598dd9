"""Timing by repeated calls, shared by the benchmarks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from etd.core.errors import UserError
from etd.core.types import PyTree
from etd.training import backend, memory
from etd.training.backend import Backend
from etd.training.experiment import Experiment
from etd.training.learn import TrainState


def timed(call: Callable[[], PyTree], repeats: int) -> tuple[PyTree, float]:
    """The result of a first call, which compiles, and the median seconds of ``repeats`` more calls."""
    result = jax.block_until_ready(call())
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - began)
    return result, float(np.median(times))


class Iterations(NamedTuple):
    """Training iterations of all seeds together, in seconds."""

    whole: np.ndarray
    """[R] each"""
    asked: np.ndarray
    """[R] until ``advance`` returned: with host environments, acting is done and learning still runs"""


def iterations(agents: Backend, state: TrainState, repeats: int) -> tuple[TrainState, Iterations]:
    """Time ``repeats`` iterations from ``state``, which they consume; the last state and the times."""
    asked, whole = [], []
    for _ in range(repeats):
        began = time.perf_counter()
        state, metrics = agents.advance(state)
        asked.append(time.perf_counter() - began)
        jax.block_until_ready((state, metrics))
        whole.append(time.perf_counter() - began)
    return state, Iterations(np.array(whole), np.array(asked))


class Whole(NamedTuple):
    """Training as a whole: all seeds together, all phases in one program."""

    compile_s: float
    iteration_s: float
    """the median"""
    steps_per_s: float
    memory_bytes: float
    """at its peak"""
    memory_counted: bool
    """by the device; otherwise it is an estimate of what is needed at least"""


def whole(experiment: Experiment, repeats: int) -> tuple[TrainState, Whole]:
    """Compile training and time ``repeats`` iterations after a first one; the state they end in and the times."""
    memory.refuse_training(experiment)
    with backend.open(experiment) as agents:
        state, first = iterations(agents, agents.start(), 1)  # compiles
        state, rest = iterations(agents, state, repeats)
    iteration_s = float(np.median(rest.whole))
    compile_s = max(float(first.whole[0]) - iteration_s, 0.0)
    steps = experiment.steps_per_iteration * experiment.seeds
    return state, Whole(compile_s, iteration_s, steps / iteration_s, *memory.taken(experiment))


def check_repeats(repeats: int) -> None:
    """A UserError if there is nothing to time."""
    if repeats < 1:
        raise UserError(f"{repeats} iterations cannot be timed. Ask for at least 1.")
