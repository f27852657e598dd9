"""How fast are the environments of the host: one alone, a pool of them, and in training?

In a pool without a policy the environments are all there is to wait for. Training reaches less of that rate while it
acts, for the policy has to look and on a CPU shares the cores, and less again over whole iterations, for it learns in
between. The share of waiting says which side is the bottleneck while acting.

All but one alone are timed over the same steps of the same number of environments, after as many as a rollout has: an
environment whose resets are slow is fast while its first episodes last.
"""

from __future__ import annotations

import time
from typing import Any

import jax
import numpy as np
from rich.console import Console

from etd.core.errors import UserError
from etd.core.types import Box, EnvSpec
from etd.envs import families
from etd.envs.host.env import HostEnv
from etd.envs.host.pool import WorkerPool, workers_here
from etd.lab.bench import timing
from etd.lab.runs.config import bonus_name, check, override
from etd.training import backend, presets
from etd.training.backend import HostBackend
from etd.training.experiment import Experiment

SECONDS = 8.0
"""How long one alone is timed, resets included."""


def installed() -> list[str]:
    """One environment of every suite that is here."""
    return [one.ids[0] for one in families.FAMILIES if one.on_host and one.ids and not one.missing()]


def run(names: list[str], bonus: str, repeats: int, assignments: tuple[str, ...] = ()) -> dict[str, Any]:
    """Time the environments ``names`` and print as it goes."""
    console, rows = Console(highlight=False), []
    for name in names:
        experiment = presets.choose(name, bonus)
        for assignment in assignments:
            experiment = override(experiment, assignment)
        row = measure(check(experiment), repeats)
        rows.append(row)
        console.print(
            f"{name:30} alone {row['alone']:8,.0f}   pool {row['pool']:8,.0f}   acting {row['acting']:8,.0f} "
            f"({row['acting'] / row['pool']:.0%} of the pool, {row['waiting']:.0%} of it waiting)   "
            f"training {row['training']:8,.0f} steps/s",
            soft_wrap=True,
        )
    device = jax.devices()[0].device_kind
    return {"device": device, "workers": workers_here(), "bonus": bonus, "environments": rows}


def measure(experiment: Experiment, repeats: int, seconds: float = SECONDS) -> dict[str, Any]:
    """Steps per second of one environment alone, of a pool of as many as training has, while training acts, and over
    whole iterations; and which share of acting is waiting for environments."""
    if repeats < 1:
        raise UserError(f"{repeats} iterations cannot be timed. Ask for at least 1.")
    with backend.open(experiment) as agents:
        if not isinstance(agents, HostBackend):
            raise UserError(f"{experiment.env.id} does not live on the host. See `etd bench env`.")
        env = agents.env
        state, _ = timing.iterations(agents, agents.start(), 1)  # compiles
        before = agents.waited
        _, took = timing.iterations(agents, state, repeats)
        waited = agents.waited - before
    steps, acting = experiment.steps_per_iteration * experiment.seeds * repeats, took.asked.sum()
    return {
        "env": env.id,
        "bonus": bonus_name(experiment.bonus),
        "num_envs": experiment.num_envs * experiment.seeds,
        "rollout": experiment.rollout_steps,
        "alone": alone(env, seconds),
        "pool": pooled(env, experiment.num_envs * experiment.seeds, experiment.rollout_steps, repeats),
        "acting": steps / acting,
        "training": steps / took.whole.sum(),
        "waiting": waited / acting,
    }


def alone(host: HostEnv, seconds: float) -> float:
    """One environment in this process under random actions."""
    spec, env, rng = host.spec, host.make(), np.random.default_rng(0)
    env.reset(seed=0)
    env.step(_random(spec, 1, rng)[0])  # what is made on first use is made now
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        action = _random(spec, 1, rng)[0]
        _, _, terminated, truncated, _ = env.step(action if isinstance(spec.action, Box) else int(action))
        steps += 1
        if terminated or truncated:
            env.reset(seed=steps)
    rate = steps / (time.perf_counter() - began)
    env.close()
    return rate


def pooled(host: HostEnv, num_envs: int, rollout: int, repeats: int) -> float:
    """``num_envs`` in worker processes under random actions, both groups told to step without waiting for a policy;
    over ``repeats`` rollouts after a first one."""
    spec, rng, half = host.spec, np.random.default_rng(0), -(-num_envs // 2)
    with WorkerPool(host, [(0, n) for n in range(num_envs)], [n // half for n in range(num_envs)]) as pool:
        pool.begin(np.zeros(num_envs, np.int32), {})
        groups = 1 + (num_envs > 1)
        for group in range(groups):
            pool.step(group)
        for step in range(rollout * (1 + repeats)):
            if step == rollout:
                began = time.perf_counter()
            for group in range(groups):
                pool.wait()
                rows = slice(group * half, (group + 1) * half)
                pool.block.action[rows] = _random(spec, len(pool.block.action[rows]), rng)
                pool.step(group)
        rate = num_envs * rollout * repeats / (time.perf_counter() - began)
        for _ in range(groups):
            pool.wait()
    return rate


def _random(spec: EnvSpec, count: int, rng: np.random.Generator) -> np.ndarray:
    space = spec.action
    if isinstance(space, Box):
        return rng.uniform(space.low, space.high, (count, space.size)).astype(np.float32)
    return rng.integers(space.n, size=count, dtype=np.int32)
