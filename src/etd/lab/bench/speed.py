"""Steps per second of the environment alone, compared with Farama's MiniGrid and, if installed, navix.

All play random actions and include resets. Ours is timed as in training: one compiled program generates a pool of
starts and steps through a rollout, keeping the observations. The pool is sized for the shortest possible episodes;
random play leaves most of it unused, yet its whole cost counts, in levels of many rooms more than half of the time. So
stepping is also timed alone, on a pool generated beforehand.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from matplotlib.ticker import EngFormatter

from etd.core.types import Array, Key, PyTree
from etd.envs import autoreset
from etd.envs.autoreset import Envs, StartPool
from etd.envs.base import DeviceEnv, random_actions
from etd.envs.minigrid.actions import ACTIONS
from etd.lab.bench.parity import farama
from etd.lab.report import plot

BATCHES = (1, 16, 128, 256, 1024, 4096, 16384, 65536)
SCAN_STEPS = 1 << 20
"""About this many environment steps, over the whole batch, are compiled into one call. Ours also generates no more
starts than this per call, so that no pool takes more than 1.7 GiB."""
MEMORY = 2 << 30
"""No more bytes of observations than this are kept in one of our calls; larger batches are left out."""
ROLLOUT = 512
"""The most steps per environment in one of our calls, as in training."""


class Speed(NamedTuple):
    """One measurement."""

    what: str
    """``etd``, ``etd, starts excluded``, ``farama``, ``farama async`` or ``navix``"""
    batch: int
    steps_per_s: float
    """The best of the repeats: other work on the machine can only slow one down."""
    compile_s: float = 0.0


def ours(env: DeviceEnv, batch: int, seconds: float = 1.0, starts: bool = True) -> Speed:
    """Our steps per second at one batch size. ``starts`` includes the time to generate them."""
    # Whole shortest episodes: otherwise a short call would round up to more starts per step than a long one.
    steps = min(int(np.clip(SCAN_STEPS // batch, 32, ROLLOUT)), _most_steps(env) // batch)
    size = min(steps // env.spec.shortest, SCAN_STEPS // batch) or 1
    length = size * env.spec.shortest
    key = jax.random.key(0)

    def generate(envs: Envs) -> StartPool:
        return autoreset.generate(env, key, envs, size)

    def walk(envs: Envs, pool: StartPool | None, key: Key) -> tuple[Envs, Array]:
        ready = generate(envs) if pool is None else pool

        def one(envs: Envs, action: Array) -> tuple[Envs, Array]:
            envs, step = autoreset.step(env, ready, envs, action, key)
            return envs, step.next_obs

        return jax.lax.scan(one, envs, random_actions(env.spec.action, key, (length, batch)))

    envs = jax.jit(lambda: autoreset.begin(env, key, batch))()
    pool = None if starts else jax.jit(generate)(envs)
    program, compile_s = _compiled(walk, envs, pool, jax.random.key(1))
    rate = _rate(lambda: program(envs, pool, jax.random.key(1)), length * batch, seconds)
    return Speed("etd" if starts else "etd, starts excluded", batch, rate, compile_s)


def fits(env: DeviceEnv, batch: int) -> bool:
    """Whether the observations of a batch's shortest episodes may be kept."""
    return batch * env.spec.shortest <= _most_steps(env)


def _most_steps(env: DeviceEnv) -> int:
    return MEMORY // (env.spec.obs_size * np.dtype(env.spec.obs_dtype).itemsize)


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
    farama(name)  # raises if Farama's package is missing
    from gymnasium.vector import AsyncVectorEnv
    from minigrid.wrappers import ImgObsWrapper

    # Spawned, because forking a process with JAX's threads may hang.
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
    """``function`` compiled for ``arguments``, and the seconds it took."""
    begin = time.perf_counter()
    program = jax.jit(function).lower(*arguments).compile()
    return program, time.perf_counter() - begin


def _rate(call: Callable[[], Any], steps: int, seconds: float) -> float:
    """The best steps per second of a ``call`` of ``steps`` steps, repeated for about ``seconds``, at least 3 times."""
    jax.block_until_ready(call())
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        before = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - before)
    return steps / min(times)


def draw(found: list[Speed], name: str, path: Path) -> Path:
    """Write steps per second against batch size, both logarithmic; single measurements are dots."""
    figure, (ax,) = plot.grid(1, (6.4, 3.8))
    names = dict.fromkeys(speed.what for speed in found)
    for what, colour in zip(names, (plot.COLOURS["etd"], *plot.PALETTE), strict=False):
        rows = [speed for speed in found if speed.what == what]
        ax.plot([row.batch for row in rows], [row.steps_per_s for row in rows], color=colour, marker="o", label=what)
    ax.set(xscale="log", yscale="log", xlabel="environments at once", ylabel="steps per second", title=name)
    ax.yaxis.set_major_formatter(EngFormatter(sep=""))
    ax.legend(frameon=False)
    return plot.save(figure, path)
