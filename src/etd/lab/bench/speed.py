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
from typing import Any

import jax
import numpy as np
from jax.stages import Compiled

from etd.core.terminal import Terminal
from etd.core.types import Array, Key, PyTree
from etd.envs import Task, autoreset
from etd.envs.autoreset import Envs, StartPool
from etd.envs.base import DeviceEnv, random_actions
from etd.envs.minigrid import MiniGrid
from etd.envs.minigrid.actions import ACTIONS
from etd.lab.bench import sweep
from etd.lab.bench.parity import farama
from etd.lab.bench.sweep import Speed

BATCHES = (1, *(1 << power for power in range(4, 17)))
"""1, and from 16 to 65,536 in doublings, so that no slow band is missed"""
SCAN_STEPS = 1 << 20
"""About this many environment steps, over the whole batch, are compiled into one call. Ours also generates no more
starts than this per call, so that no pool takes more than 1.7 GiB."""
MEMORY = 2 << 30
"""No more bytes of observations than this are kept in one of our calls; larger batches are left out."""
ROLLOUT = 512
"""The most steps per environment in one of our calls, as in training."""


def run(name: str, picture: Path, seconds: float = 1.0) -> dict[str, Any]:
    """Steps per second of the environment alone at many batch sizes; Farama's and navix's too, if installed, each timed
    for ``seconds`` or longer. Prints results as they come and draws them."""
    console = Terminal(soft_wrap=True)
    found: list[Speed] = []

    def note(speed: Speed | None) -> None:
        if speed is not None:
            smaller = [one for one in found if one.what == speed.what]
            console.print(sweep.line(speed, smaller[-1] if smaller else None))
            found.append(speed)

    env = Task.of(name).make()
    for batch in (batch for batch in BATCHES if fits(env, batch)):
        note(ours(env, batch, seconds))
        note(ours(env, batch, seconds, starts=False))
    if isinstance(env, MiniGrid):
        try:
            note(of_farama(name))
            note(of_farama_async(name, 16))
        except ImportError as error:
            console.print(str(error))
        for batch in (16, 1024):
            note(of_navix(name, batch))
    device = jax.devices()[0].device_kind
    console.print(f"Plot: {sweep.draw(found, 'environments', f'{name}, {device}', picture)}")
    bands = sweep.slow_bands([one for one in found if one.what == "etd"])
    return {"env": name, "device": device, "speeds": [speed._asdict() for speed in found], "slow_bands": bands}


def ours(env: DeviceEnv, batch: int, seconds: float, starts: bool = True) -> Speed:
    """Our steps per second at one batch size, the best of the repeats: other work on the machine only slows one down.
    ``starts`` includes the time to generate them."""
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
    return Speed("etd" if starts else "etd, starts excluded", batch, rate, compile_s, _memory(program))


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
    """navix on the same level with the same view; None if it cannot be imported or lacks the level."""
    try:
        navix = import_module("navix")
        view = navix.observations.symbolic_first_person
        env = navix.make(name.replace("MiniGrid-", "Navix-"), observation_fn=view)
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


def _compiled(function: Callable[..., Any], *arguments: Any) -> tuple[Compiled, float]:
    """``function`` compiled for ``arguments``, and the seconds it took."""
    begin = time.perf_counter()
    program = jax.jit(function).lower(*arguments).compile()
    return program, time.perf_counter() - begin


def _memory(program: Compiled) -> int | None:
    """Bytes of a program's inputs, outputs and all between, as the compiler has planned them."""
    plan = program.memory_analysis()
    if plan is None:
        return None
    return int(plan.argument_size_in_bytes + plan.output_size_in_bytes + plan.temp_size_in_bytes)


def _rate(call: Callable[[], Any], steps: int, seconds: float) -> float:
    """The best steps per second of a ``call`` of ``steps`` steps, repeated for about ``seconds``, at least 3 times."""
    jax.block_until_ready(call())
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        before = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - before)
    return steps / min(times)
