"""How fast are host environments: a single one, a pool, and in training?

A pool without a policy waits only for its environments. Training is slower than that while acting, because the policy
has to run too and on a CPU shares the cores, and slower again over whole iterations, because it also learns. The share
of time spent waiting shows which side is the bottleneck while acting.

Pool and training are timed over the same steps of the same number of environments, after a warm-up of one rollout: an
environment with slow resets is fast during its first episodes.
"""

from __future__ import annotations

import time
from typing import Any

import jax
import numpy as np

from etd.core.errors import UserError
from etd.core.terminal import Terminal
from etd.core.types import Box, EnvSpec
from etd.envs import families
from etd.envs.host.env import HostEnv
from etd.envs.host.pool import WorkerPool, workers_here
from etd.lab.bench import timing
from etd.training import backend, memory, presets
from etd.training.backend import HostBackend
from etd.training.config import bonus_name, override
from etd.training.experiment import Experiment
from etd.training.validate import check

SECONDS = 8.0
"""How long a single environment is timed, resets included."""


def installed() -> list[str]:
    """One environment of every installed suite."""
    return [one.ids[0] for one in families.FAMILIES if one.on_host and one.ids and not one.missing()]


def run(names: list[str], bonus: str, repeats: int, assignments: tuple[str, ...] = ()) -> dict[str, Any]:
    """Time the environments ``names``, printing results as they come."""
    console, rows = Terminal(), []
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
    """Steps per second of a single environment, of a pool as large as in training, of training while acting, and over
    whole iterations; and the share of acting spent waiting for environments."""
    timing.check_repeats(repeats)
    memory.refuse_training(experiment)
    with backend.open(experiment) as agents:
        if not isinstance(agents, HostBackend):
            raise UserError(f"{experiment.env.id} does not live on the host. Use `etd bench env`.")
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
    """A single environment in this process under random actions."""
    spec, env, rng = host.spec, host.make(), np.random.default_rng(0)
    env.reset(seed=0)
    env.step(_random(spec, 1, rng)[0])  # triggers lazy initialisation
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
    """``num_envs`` in worker processes under random actions, in two groups that never wait for a policy; timed over
    ``repeats`` rollouts after a first one."""
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
