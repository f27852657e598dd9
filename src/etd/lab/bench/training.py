"""How fast is training here, and where does the time go?

Every phase is timed as its own compiled program on the same data, so the phases need not add up to a whole iteration.
Arithmetic is compared with a large matrix product timed in the same process at the same precision.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from typing import Any, get_args

import jax
import numpy as np

from etd.core.errors import UserError
from etd.core.keys import named
from etd.core.terminal import Terminal
from etd.core.types import Array, Key, PyTree, Rollout
from etd.core.version import __version__
from etd.core.words import counted, say
from etd.envs import autoreset
from etd.envs.autoreset import Envs
from etd.envs.base import DeviceEnv, random_actions
from etd.lab.bench import against, arithmetic, timing
from etd.lab.bench.against import Kept
from etd.training import backend, compiled, learn, memory, presets
from etd.training.backend import Backend
from etd.training.collect import collect
from etd.training.config import bonus_name, hints_of, to_dict
from etd.training.experiment import Experiment
from etd.training.learn import TrainState
from etd.training.migrate import FORMAT
from etd.training.validate import check


def training(
    experiment: Experiment, repeats: int = 3, variants: Mapping[str, Experiment] | None = None, kept: Kept | None = None
) -> dict[str, Any]:
    """Compile and time whole iterations, their phases, and whole iterations of ``variants`` of the experiment; prints
    each row as it is known, beside that of a ``kept`` result. Seconds are per iteration of all seeds together."""
    timing.check_repeats(repeats)
    env, device, bonus = experiment.env.make(), jax.devices()[0].device_kind, bonus_name(experiment.bonus)
    console = Terminal(soft_wrap=True)
    different = against.differences(kept, experiment, device) if kept else []

    def row(name: str, value: float, words: Callable[[float], str], share: str = "", note: str = "") -> None:
        if kept and not note:
            note, slower = against.ratio(kept, name.strip(), value, words)
            note += ", slower" if slower and not different else ""
        console.print(f"{name:20}{words(value):>16}{share:>8}   {note}".rstrip())

    seeds = "1 seed" if experiment.seeds == 1 else f"{experiment.seeds} seeds"
    console.print(f"{experiment.env.id}, {bonus}, {seeds}, {experiment.precision}, {device}")
    if kept:
        console.print(against.heading(kept, different))
    with console.status("compiling; minutes on a CPU") as status:
        state, whole = timing.whole(experiment, repeats)
        row("compile", whole.compile_s, _seconds)
        row("one iteration", whole.iteration_s, _milliseconds, "100 %")
        row("steps per second", whole.steps_per_s, _number)
        row("memory", whole.memory_bytes, memory.readable, note="" if whole.memory_counted else "or more, estimated")
        status.update("compiling and timing the phases")
        phases = {}
        for name, seconds in _phases(experiment, env, state, repeats):
            phases[name] = seconds
            row(f"  {name}", seconds, _milliseconds, _percent(seconds / whole.iteration_s))
        with compiled.precision(experiment):
            limit = arithmetic.matmul_rate()
            work = arithmetic.flops(partial(learn.iterate, experiment, env), _one(state)) * experiment.seeds
        del state  # its memory, for the variants
        rate = work / whole.iteration_s
        row("arithmetic", rate, _gflops, _percent(rate / limit), f"of a matrix product's {_gflops(limit)}")
        others: dict[str, dict[str, float]] = {}
        for name, variant in (variants or {}).items():
            status.update(f"compiling and timing: {name}")
            one = timing.whole(variant, repeats)[1]
            relative = one.iteration_s / whole.iteration_s
            row(name, one.iteration_s, _milliseconds, _percent(relative))
            others[name] = {"compile_s": one.compile_s, "iteration_s": one.iteration_s, "relative": relative}
    return {
        "format": FORMAT,
        "versions": {"etd": __version__, "jax": jax.__version__},
        "experiment": to_dict(experiment),
        "bonus": bonus,
        "device": device,
        **whole._asdict(),
        "phases_s": phases,
        "gflop_per_iteration": work / 1e9,
        "gflop_per_s": rate / 1e9,
        "matmul_gflop_per_s": limit / 1e9,
        "fraction_of_matmul": rate / limit,
        "variants": others,
    }


def variants_of(experiment: Experiment) -> dict[str, Experiment]:
    """The same training at every other precision, and with the other choice of deterministic, where the device has
    them: a CPU computes in float32 and always repeats."""
    if jax.default_backend() == "cpu":
        return {}
    names = get_args(hints_of(Experiment)["precision"])
    found = {name: replace(experiment, precision=name) for name in names if name != experiment.precision}
    name = "not deterministic" if experiment.deterministic else "deterministic"
    return {name: replace(experiment, deterministic=not experiment.deterministic), **found}


def _seconds(value: float) -> str:
    return f"{value:.1f} s"


def _milliseconds(value: float) -> str:
    return f"{value * 1e3:,.1f} ms"


def _number(value: float) -> str:
    return f"{value:,.0f}"


def _gflops(value: float) -> str:
    return f"{value / 1e9:,.0f} GFLOP/s"


def _percent(value: float) -> str:
    return f"{value * 100:.0f} %"


def _phases(experiment: Experiment, env: DeviceEnv, state: TrainState, repeats: int) -> Iterator[tuple[str, float]]:
    """Name and seconds of each, as soon as it is timed."""
    bonus, ppo = experiment.bonus, experiment.ppo
    size = autoreset.pool_size(env.spec, experiment.rollout_steps)

    def starts(state: TrainState) -> PyTree:
        return autoreset.generate(env, state.key, state.envs, size)

    def act(state: TrainState, pool: PyTree) -> Rollout:
        steps, needs = experiment.rollout_steps, bonus.needs
        return collect(env, state.learner.policy, state.envs, state.hidden, pool, steps, state.key, needs)[2]

    def environment(state: TrainState, pool: PyTree) -> Array:
        return _random_walk(env, state.envs, pool, experiment.rollout_steps, state.key)

    def score(state: TrainState, rollout: Rollout) -> PyTree:
        return bonus.score(state.learner.bonus, rollout, state.key)

    def model(state: TrainState, rollout: Rollout, trace: PyTree) -> PyTree:
        return bonus.improve(state.learner.bonus, rollout, trace, state.key)

    def policy(state: TrainState, rollout: Rollout) -> PyTree:
        learner = state.learner
        return ppo.improve(learner.policy, learner.advantage_moments, rollout, rollout.step.reward, state.key)

    def timed(function: Callable, *args: PyTree) -> tuple[PyTree, float]:
        """Result and median seconds of the function, over all seeds and compiled as in training."""
        program = compiled.Program(experiment, compiled.over_seeds(function))
        return timing.timed(lambda: program(*args), repeats)

    pool, starts_s = timed(starts, state)
    yield "starts", starts_s
    rollout, act_s = timed(act, state, pool)
    _, env_s = timed(environment, state, pool)
    yield "acting", max(act_s - env_s, 0.0)
    yield "environment", env_s
    (_, scored), score_s = timed(score, state, rollout)
    yield "scoring", score_s
    yield "model epochs", timed(model, state, rollout, scored.trace)[1]
    yield "PPO epochs", timed(policy, state, rollout)[1]


def _random_walk(env: DeviceEnv, envs: Envs, pool: PyTree, steps: int, key: Key) -> Array:
    """The environments alone under random actions; the sum keeps the compiler from eliminating any work."""
    actions = random_actions(env.spec.action, named(key, "actions"), (steps, envs.episode.shape[0]))

    def advance(envs: Envs, now: tuple[Array, Key]) -> tuple[Envs, Array]:
        envs, transition = autoreset.step(env, pool, envs, *now)
        return envs, transition.next_obs.sum() + transition.reward.sum()

    return jax.lax.scan(advance, envs, (actions, jax.random.split(key, steps)))[1]


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


def _one(state: TrainState) -> TrainState:
    """The first seed's state."""
    return jax.tree.map(lambda leaf: leaf[0], state)
