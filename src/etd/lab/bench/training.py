"""How fast is training here, and where does the time go?

Every phase is timed as its own compiled program on the same data. Arithmetic is counted from the traced program
(matrix products and convolutions, loops multiplied out) and compared with a large matrix product timed in the same
process at the same precision.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.extend.core import jaxprs_in_params
from rich.table import Table

from etd.core.errors import UserError
from etd.core.keys import named
from etd.core.terminal import Terminal
from etd.core.types import Array, Key, PyTree, Rollout
from etd.core.words import counted, say
from etd.envs import Task, autoreset
from etd.envs.autoreset import Envs
from etd.envs.base import DeviceEnv, random_actions
from etd.envs.minigrid import MiniGrid
from etd.lab.bench import speed as speeds
from etd.lab.bench import timing
from etd.lab.bench.speed import Speed
from etd.lab.runs import memory
from etd.lab.runs.config import bonus_name, to_dict
from etd.lab.runs.validate import check
from etd.training import backend, compiled, learn, presets
from etd.training.backend import Backend
from etd.training.collect import collect
from etd.training.experiment import Experiment
from etd.training.learn import TrainState


def training(experiment: Experiment, repeats: int = 3) -> dict[str, Any]:
    """Compile and time whole iterations and their phases. Seconds are per iteration of all seeds together."""
    timing.check_repeats(repeats)
    memory.refuse_training(experiment)
    with compiled.precision(experiment):
        env = experiment.env.make()
        agents = backend.open(experiment)
        state = agents.start()
        phases = _phases(experiment, env, state, repeats)
        rate = matmul_rate()
        work = flops(partial(learn.iterate, experiment, env), _one(state)) * experiment.seeds
        state, first = timing.iterations(agents, state, 1)  # compiles
        _, rest = timing.iterations(agents, state, repeats)
        iteration_s = float(np.median(rest.whole))
        compile_s = max(float(first.whole[0]) - iteration_s, 0.0)
    steps = experiment.steps_per_iteration * experiment.seeds
    device = jax.devices()[0]
    return {
        "experiment": to_dict(experiment),
        "bonus": bonus_name(experiment.bonus),
        "device": device.device_kind,
        "compile_s": compile_s,
        "iteration_s": iteration_s,
        "steps_per_s": steps / iteration_s,
        "phases_s": phases,
        "gflop_per_iteration": work / 1e9,
        "gflop_per_s": work / iteration_s / 1e9,
        "matmul_gflop_per_s": rate / 1e9,
        "fraction_of_matmul": work / iteration_s / rate,
    }


def _phases(experiment: Experiment, env: DeviceEnv, state: TrainState, repeats: int) -> dict[str, float]:
    bonus, ppo = experiment.bonus, experiment.ppo
    size = autoreset.pool_size(env.spec, experiment.rollout_steps)

    def starts(state: TrainState) -> PyTree:
        return autoreset.generate(env, state.key, state.envs, size)

    def act(state: TrainState, pool: PyTree) -> Rollout:
        steps, needs = experiment.rollout_steps, bonus.needs
        return collect(env, state.learner.policy, state.envs, state.hidden, pool, steps, state.key, needs)[2]

    def environment(state: TrainState, pool: PyTree) -> Array:
        return _random_walk(env, state.envs, pool, experiment.rollout_steps, state.key)

    pool, starts_s = _timed(starts, repeats, state)
    rollout, act_s = _timed(act, repeats, state, pool)
    _, env_s = _timed(environment, repeats, state, pool)

    def score(state: TrainState, rollout: Rollout) -> PyTree:
        return bonus.score(state.learner.bonus, rollout, state.key)

    def model(state: TrainState, rollout: Rollout, trace: PyTree) -> PyTree:
        return bonus.improve(state.learner.bonus, rollout, trace, state.key)

    def policy(state: TrainState, rollout: Rollout) -> PyTree:
        learner = state.learner
        return ppo.improve(learner.policy, learner.advantage_moments, rollout, rollout.step.reward, state.key)

    (_, scored), score_s = _timed(score, repeats, state, rollout)
    return {
        "starts": starts_s,
        "acting": max(act_s - env_s, 0.0),
        "environment": env_s,
        "scoring": score_s,
        "model epochs": _timed(model, repeats, state, rollout, scored.trace)[1],
        "PPO epochs": _timed(policy, repeats, state, rollout)[1],
    }


def _random_walk(env: DeviceEnv, envs: Envs, pool: PyTree, steps: int, key: Key) -> Array:
    """The environments alone under random actions; the sum keeps the compiler from eliminating any work."""
    actions = random_actions(env.spec.action, named(key, "actions"), (steps, envs.episode.shape[0]))

    def advance(envs: Envs, now: tuple[Array, Key]) -> tuple[Envs, Array]:
        envs, transition = autoreset.step(env, pool, envs, *now)
        return envs, transition.next_obs.sum() + transition.reward.sum()

    return jax.lax.scan(advance, envs, (actions, jax.random.split(key, steps)))[1]


def _timed(function: Callable, repeats: int, *args: PyTree) -> tuple[PyTree, float]:
    """Result and median seconds of the compiled, seed-batched function."""
    program = jax.jit(compiled.over_seeds(function))
    return timing.timed(lambda: program(*args), repeats)


def bonuses(env: str, names: Sequence[str], seeds: int = 1, repeats: int = 5) -> dict[str, Any]:
    """Seconds per iteration with each bonus, 16 environments x 512 steps, and relative to no bonus.

    The programs are compiled in parallel, then timed one by one.
    """
    timing.check_repeats(repeats)
    console = Terminal()

    def ready(name: str) -> tuple[str, Backend, TrainState]:
        experiment = check(replace(presets.choose(env, name), num_envs=16, rollout_steps=512, seeds=seeds))
        memory.refuse_training(experiment)
        with backend.open(experiment) as agents:
            state, _ = timing.iterations(agents, agents.start(), 1)
        console.print(f"compiled {name}")
        return name, agents, state

    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2)) as workers:
        programs = list(workers.map(ready, ["none", *(name for name in names if name != "none")]))
    seconds: dict[str, float] = {}
    for name, agents, state in programs:
        with agents:
            seconds[name] = float(np.median(timing.iterations(agents, state, repeats)[1].whole))
        times = seconds[name] / seconds["none"]
        console.print(f"{name:14} {seconds[name] * 1e3:10,.1f} ms per iteration   {times:5.2f} x no bonus")
    relative = {name: value / seconds["none"] for name, value in seconds.items()}
    device = jax.devices()[0].device_kind
    return {"env": env, "device": device, "seeds": seeds, "iteration_s": seconds, "relative": relative}


def environment(name: str, picture: Path) -> dict[str, Any]:
    """Steps per second of the environment alone at many batch sizes; Farama's and navix's too, if installed."""
    console = Terminal()
    found: list[Speed] = []

    def note(speed: Speed | None) -> None:
        if speed is not None:
            found.append(speed)
            console.print(f"{speed.what:20} batch {speed.batch:6,}  {speed.steps_per_s:14,.0f} steps/s")

    env = Task.of(name).make()
    for batch in (batch for batch in speeds.BATCHES if speeds.fits(env, batch)):
        note(speeds.ours(env, batch))
        note(speeds.ours(env, batch, starts=False))
    if isinstance(env, MiniGrid):
        try:
            note(speeds.of_farama(name))
            note(speeds.of_farama_async(name, 16))
        except ImportError as error:
            console.print(str(error))
        for batch in (16, 1024):
            note(speeds.of_navix(name, batch))
    speeds.draw(found, name, picture)
    console.print(f"Plot: {picture}")
    return {"env": name, "device": jax.devices()[0].device_kind, "speeds": [speed._asdict() for speed in found]}


def parity(steps: int) -> dict[str, Any]:
    """Compare with Farama's MiniGrid on every level; prints the numbers of steps and mismatches."""
    from etd.lab.bench import parity

    if steps < 1:
        raise UserError(f"{steps} steps cannot be compared. Ask for at least 1.")
    try:
        with Terminal().status("comparing") as status:
            report = parity.run(steps, tell=lambda name: status.update(f"comparing {name}"))
    except ImportError as error:
        raise UserError(str(error)) from error
    done = [(report.steps, "step"), (report.episodes, "episode"), (len(report.by_level), "level")]
    say(f"{', '.join(counted(*pair) for pair in done)}: {report.mismatches:,} mismatches. {report.first}")
    return asdict(report)


def matmul_rate() -> float:
    """FLOP/s of a large square float32 matrix product at the current precision."""
    size = 2048 if jax.default_backend() == "cpu" else 8192
    a = jax.random.normal(jax.random.key(0), (size, size))
    product = jax.jit(lambda a: a @ a)
    return 2 * size**3 / timing.timed(lambda: product(a), 5)[1]


def flops(function: Callable, *args: PyTree) -> float:
    """Multiplications and additions of all matrix products and convolutions that ``function`` performs."""
    return _count(jax.make_jaxpr(function)(*args).jaxpr)


def _count(jaxpr: Any) -> float:
    total = 0.0
    for equation in jaxpr.eqns:
        inner = sum(_count(sub) for sub in jaxprs_in_params(equation.params))
        total += inner * equation.params.get("length", 1)
        if equation.primitive.name == "dot_general":
            (contract, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            total += 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[i] for i in contract)
        elif equation.primitive.name == "conv_general_dilated":
            kernel = equation.invars[1].aval.shape
            out_features = equation.params["dimension_numbers"].rhs_spec[0]
            total += 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(kernel) / kernel[out_features]
    return total


def _one(state: TrainState) -> TrainState:
    """The first seed's state."""
    return jax.tree.map(lambda leaf: leaf[0], state)


def table(result: dict[str, Any]) -> Table:
    """The numbers as a table for the terminal."""
    experiment = result["experiment"]
    title = f"{experiment['env']['id']}, {result['bonus']}, {experiment['seeds']} seed(s), {result['device']}"
    rows = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2))
    rows.add_row("compile", f"{result['compile_s']:.1f} s")
    rows.add_row("steps/s, end to end", f"{result['steps_per_s']:,.0f}")
    rows.add_row("one iteration", f"{result['iteration_s'] * 1e3:,.1f} ms")
    for name, seconds in result["phases_s"].items():
        rows.add_row(f"  {name}", f"{seconds * 1e3:,.1f} ms")
    rows.add_row("arithmetic", f"{result['gflop_per_s']:,.0f} GFLOP/s")
    share = f"{result['fraction_of_matmul']:.0%} of a matrix product's {result['matmul_gflop_per_s']:,.0f}"
    rows.add_row("", f"{share} ({experiment['precision']})")
    return rows
