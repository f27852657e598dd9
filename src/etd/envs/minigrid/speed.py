"""Steps per second of the environment alone, beside Farama's MiniGrid and, where it is installed, navix.

All play random actions and include restarts. Ours is timed as training uses it: one compiled scan, observations kept,
each environment restarting from levels generated beforehand.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from etd.core.types import Array, PyTree, Transition
from etd.envs.minigrid.actions import ACTIONS
from etd.envs.minigrid.env import MiniGrid, make
from etd.envs.minigrid.parity import farama

BATCHES = (1, 16, 128, 256, 1024, 4096, 16384, 65536)
SCAN_STEPS = 1 << 20
"""About this many environment steps, shared by the batch, are compiled into one call."""


class Speed(NamedTuple):
    """One measurement."""

    what: str
    """etd, farama, farama async or navix"""
    batch: int
    steps_per_s: float
    """The best of the repeats: other work on the machine only ever slows one down."""
    compile_s: float = 0.0


def sweep(name: str, batches: Sequence[int] = BATCHES, seconds: float = 1.0) -> list[Speed]:
    """Ours at every batch size."""
    return [ours(make(name), batch, seconds) for batch in batches]


def ours(env: MiniGrid, batch: int, seconds: float = 1.0) -> Speed:
    """Our steps per second at one batch size."""
    length = int(np.clip(SCAN_STEPS // batch, 32, 4096))

    def walk(state: PyTree, starts: PyTree, key: Array) -> tuple[PyTree, Array]:
        def one(state: PyTree, action: Array) -> tuple[PyTree, Array]:
            state, step = jax.vmap(env.step)(state, action)
            return _restarted(state, starts, step), step.next_obs

        return jax.lax.scan(one, state, jax.random.randint(key, (length, batch), 0, ACTIONS))

    starts, _ = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), batch))
    program, compile_s = _compiled(walk, starts, starts, jax.random.key(1))
    return Speed(
        "etd", batch, _rate(lambda: program(starts, starts, jax.random.key(1)), length * batch, seconds), compile_s
    )


def _restarted(state: PyTree, starts: PyTree, step: Transition) -> PyTree:
    """``state`` [batch, ...], with the start of each environment whose episode ended."""

    def choose(now: Array, start: Array) -> Array:
        return jnp.where(step.done.reshape(-1, *[1] * (now.ndim - 1)), start, now)

    return jax.tree.map(choose, state, starts)


def of_farama(name: str, seconds: float = 2.0) -> Speed:
    """Farama's MiniGrid, one environment in this process."""
    env, rng = farama(name), np.random.default_rng(0)
    env.reset(seed=0)

    def play() -> None:
        for action in rng.integers(0, ACTIONS, 200):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    return Speed("farama", 1, _rate(play, 200, seconds))


def of_farama_async(name: str, batch: int, seconds: float = 2.0) -> Speed:
    """Farama's MiniGrid in Gymnasium's AsyncVectorEnv, one process per environment."""
    farama(name)  # says so if Farama's package is missing
    from gymnasium.vector import AsyncVectorEnv
    from minigrid.wrappers import ImgObsWrapper

    # Spawned, because forking a process that runs JAX's threads may hang it.
    envs = AsyncVectorEnv([lambda: ImgObsWrapper(farama(name))] * batch, context="spawn")
    envs.reset(seed=0)
    rng = np.random.default_rng(0)

    def play() -> None:
        for actions in rng.integers(0, ACTIONS, (50, batch)):
            envs.step(actions)

    try:
        return Speed("farama async", batch, _rate(play, 50 * batch, seconds))
    finally:
        envs.close()


def of_navix(name: str, batch: int, seconds: float = 1.0) -> Speed | None:
    """navix on the same level; None if it is not installed, cannot be imported or lacks the level."""
    try:
        env = import_module("navix").make(name.replace("MiniGrid-", "Navix-"))
    except Exception:  # an optional competitor, which newer JAX versions break in several ways
        return None
    length = int(np.clip(SCAN_STEPS // batch, 32, 4096))

    def walk(timestep: PyTree, key: Array) -> tuple[PyTree, Array]:
        def one(timestep: PyTree, action: Array) -> tuple[PyTree, Array]:
            timestep = jax.vmap(env.step)(timestep, action)
            return timestep, timestep.observation

        return jax.lax.scan(one, timestep, jax.random.randint(key, (length, batch), 0, ACTIONS))

    first = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), batch))
    program, compile_s = _compiled(walk, first, jax.random.key(1))
    return Speed("navix", batch, _rate(lambda: program(first, jax.random.key(1)), length * batch, seconds), compile_s)


def _compiled(function: Callable[..., Any], *arguments: Any) -> tuple[Callable[..., Any], float]:
    """``function`` compiled for ``arguments``, and the seconds that took."""
    begin = time.perf_counter()
    program = jax.jit(function).lower(*arguments).compile()
    return program, time.perf_counter() - begin


def _rate(call: Callable[[], Any], steps: int, seconds: float) -> float:
    """The best steps per second of one ``call`` of ``steps`` steps, repeated for about ``seconds``."""
    jax.block_until_ready(call())
    best, begin = float("inf"), time.perf_counter()
    while time.perf_counter() - begin < seconds:
        before = time.perf_counter()
        jax.block_until_ready(call())
        best = min(best, time.perf_counter() - before)
    return steps / best
