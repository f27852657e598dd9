"""The host side of training: drive the compiled iteration, show progress, log, checkpoint, stop cleanly."""

from __future__ import annotations

import os
import re
import shlex
import signal
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from etd.core import files, plugins
from etd.core.errors import UserError
from etd.core.limits import is_number
from etd.core.types import Metrics
from etd.core.words import counted, printable
from etd.envs.families import title
from etd.lab.runs import export, programs
from etd.lab.runs.agent import Agent
from etd.lab.runs.lock import claim
from etd.lab.runs.progress import Progress
from etd.lab.runs.record import EXPORT
from etd.lab.runs.sinks import Sink, check_sinks, open_sinks
from etd.lab.runs.store import Run
from etd.training import backend, compiled, memory, presets
from etd.training.backend import Backend
from etd.training.config import assign, bonus_name, unwritable
from etd.training.experiment import Experiment
from etd.training.learn import TrainState
from etd.training.validate import check, check_kind

LONGEST = 100
"""Letters of a name that etd itself gives to a folder; systems allow 255 bytes."""
SAVE_EVERY = 120.0
"""Seconds between checkpoints, unless ETD_SAVE_EVERY says otherwise; one more is written at the end and on Ctrl-C or
SIGTERM."""


def train(
    env: Any = None,
    bonus: Any = None,
    *,
    ppo: Any = None,
    mix: Any = None,
    experiment: Experiment | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    until: float | None = None,
    deadline: float | None = None,
    sinks: tuple[str, ...] = (),
    quiet: bool = False,
    fields: dict[str, Any] | None = None,
    **keywords: Any,
) -> Run:
    """Train and return the finished Run.

    ``env`` is an id, ``module:Class``, a DeviceEnv, a Gymnasium class or a function that makes one; ``bonus`` a name,
    an expression such as "etd + 0.5*rnd", a Bonus or its class; ``ppo`` and ``mix`` an object or a class. An object is
    used as is; a name or a class gets the paper's settings for this environment and bonus. Alternatively, pass a whole
    ``experiment``. ``fields`` override its fields by path: ``{"ppo.entropy_coef": 1e-2}``; those without a dot may also
    be keywords (``steps=200_000``).

    ``until`` stops early once every seed's mean return over 100 episodes reaches it, ``deadline`` once ``time.time()``
    does; both save a checkpoint. ``sinks`` are extra outputs for the metrics: "tensorboard", "wandb".

    >>> import etd
    >>> run = etd.train("MiniGrid-Empty-5x5-v0", "count", steps=64, num_envs=4, rollout_steps=16,
    ...                 fields={"ppo.minibatch": 32, "ppo.epochs": 1}, out="runs/example", quiet=True)
    >>> run.metrics()["step"]
    array([64])
    """
    if experiment is None:
        experiment = presets.choose(
            "MiniGrid-DoorKey-8x8-v0" if env is None else env, "etd" if bonus is None else bonus
        )
    elif env is not None or bonus is not None:
        raise UserError("Pass an experiment, or an environment and a bonus, not both.")
    if not isinstance(fields or {}, Mapping):
        raise UserError(f"fields is {fields!r}; pass a dictionary of paths and values.")
    for name, value in {"ppo": ppo, "mix": mix, **keywords, **(fields or {})}.items():
        if value is not None or name not in ("ppo", "mix"):
            experiment = assign(check_kind(experiment), name, value)
    experiment, end, _ = check(experiment), _End(until, deadline), _save_every()
    path = files.path_of(out) if out else _free_name(experiment)
    news = [f"Only this process can resume this run: {words}." for words in unwritable(experiment)[:1]]
    check_sinks(sinks)
    files.refuse_unwritable(path, folder=True)
    memory.refuse_training(experiment)
    with claim(path) as unlocked:
        run = Run.create(path, experiment, overwrite)
        try:
            return _advance(run, None, 0, [*unlocked, *news], end, sinks, quiet)
        except BaseException:
            run.put_back()  # what it was to replace
            raise


def resume(
    path: str | Path,
    *,
    steps: int | None = None,
    until: float | None = None,
    deadline: float | None = None,
    sinks: tuple[str, ...] = (),
    quiet: bool = False,
) -> Run:
    """Continue a run from its newest intact checkpoint as if it had never stopped: bit for bit if the compiled program
    is the same, as it is on a CPU.

    ``steps`` sets a new total number of steps, even for a finished run.

    >>> import etd
    >>> run = etd.train("MiniGrid-Empty-5x5-v0", "count", steps=64, num_envs=4, rollout_steps=16,
    ...                 fields={"ppo.minibatch": 32, "ppo.epochs": 1}, out="runs/example", quiet=True)
    >>> etd.resume("runs/example", steps=128, quiet=True).metrics()["step"]
    array([ 64, 128])
    """
    run, end, _ = Run.open(path), _End(until, deadline), _save_every()
    refuse_copy(run)
    check_sinks(sinks)
    memory.refuse_training(check(run.require()))
    with claim(run.path) as unlocked:
        if steps is not None:
            longer = check(assign(run.experiment, "steps", steps))
            with _disk(run):
                run.extend(longer)
        if not run.checkpoints():  # stopped before its first checkpoint: start over
            anew = [f"{run.path} has no checkpoint and starts over."] if run.metrics_file.exists() else []
            with _disk(run):
                run.rewind(0)
            return _advance(run, None, 0, [*unlocked, *anew], end, sinks, quiet)
        state, iteration, complaints = run.load(backend.shapes(run.experiment))
        news = [*unlocked, *complaints, *filter(None, [run.flaws(iteration)])]
        with _disk(run):
            run.rewind(iteration)
        return _advance(run, state, iteration, news, end, sinks, quiet)


def refuse_copy(run: Run) -> None:
    """A kept copy or an exported agent cannot be resumed."""
    if run.exported:
        raise UserError(f"{run.path} is an exported agent and cannot be trained further. Resume the run it came from.")
    if run.kept:
        raise UserError(f"{run.path} is a kept copy without checkpoints and cannot be resumed. Choose another --out.")


class Trained(NamedTuple):
    """A run and its newest intact state."""

    run: Run
    state: TrainState
    """leaves [S, ...]"""

    def agent(self, seed: int | None = None) -> Agent:
        """The agent of a seed, numbered as in the metrics; of the first if omitted."""
        experiment, index = export.single(self.run, seed)
        return Agent(experiment, export.weights(self.state, index))


def load(path: str | Path) -> Trained:
    """A run and its newest intact state, a TrainState with leaves [S, ...]; ``load(path).agent()`` is the trained
    agent. Of an exported agent, the state is enough to play with, not to train on.

    >>> import etd
    >>> run = etd.train("MiniGrid-Empty-5x5-v0", "count", steps=64, num_envs=4, rollout_steps=16,
    ...                 fields={"ppo.minibatch": 32, "ppo.epochs": 1}, out="runs/example", quiet=True)
    >>> run, state = etd.load("runs/example")
    >>> int(state.iteration[0])
    1
    """
    run = Run.open(path)
    if run.exported:
        return Trained(run, export.playable(check(run.require()), export.read(run)))
    _refuse_kept(run)
    state, _, complaints = run.load(backend.shapes(check(run.require())))
    for complaint in complaints:
        warnings.warn(printable(complaint), stacklevel=2)
    return Trained(run, state)


def _refuse_kept(run: Run) -> None:
    """A kept copy has no agents in it, but there may be one beside its metrics."""
    agent = run.path / "agent"
    if run.kept and (agent / EXPORT).is_file():
        raise UserError(f"{run.path} is a kept copy without checkpoints. Its agent is in {agent}: use that.")


def _free_name(experiment: Experiment) -> Path:
    """runs/ENV-BONUS, with a number appended if taken."""
    stem = Path("runs") / safe_name(f"{title(experiment.env.id)}-{bonus_name(experiment.bonus)}")[:LONGEST]
    path, number = stem, 1
    while path.exists():
        number += 1
        path = stem.with_name(f"{stem.name}-{number}")
    return path


def safe_name(text: str) -> str:
    """A file or folder name that is valid on every system."""
    return re.sub(r"[^\w.+=-]+", "-", text.replace(" ", "").replace("*", "x")).strip("-.") or "run"


def _save_every() -> float:
    given = os.environ.get("ETD_SAVE_EVERY", str(SAVE_EVERY))
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise UserError(f"ETD_SAVE_EVERY is {given!r}; it must be a number of seconds, such as 120.")
    return seconds


@dataclass(frozen=True)
class _End:
    """When to end a run before its last step."""

    until: float | None
    deadline: float | None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not is_number(value):
                raise UserError(f"{name} is {value!r}; it must be a finite number.")

    def reason(self, best: float) -> str:
        """Why to end now, ``best`` being the return that every seed has reached; empty if there is no reason."""
        if self.until is not None and best >= self.until:
            return f"Every seed's return has reached {self.until:g}"
        return "The time is up" if self.deadline is not None and time.time() >= self.deadline else ""


@dataclass
class _Watch:
    """What is remembered between iterations."""

    frozen: set[int] = field(default_factory=set)
    best: float = float("nan")


def _advance(
    run: Run,
    loaded: TrainState | None,
    iteration: int,
    news: list[str],
    end: _End,
    sinks: tuple[str, ...],
    quiet: bool,
) -> Run:
    """Train from the ``loaded`` state of an iteration, or from scratch."""
    experiment, first = run.experiment, iteration
    watch, saved, every = _Watch(), time.monotonic(), _save_every()
    spent = float(np.max(run.metrics().get("wall", [0.0])))
    with _disk(run):
        run.ask(end.until, plugins.named())
    with (
        stop_signals() as stop,
        programs.cached() as cache,
        open_sinks(sinks, run) as outlets,
        Progress(
            experiment,
            quiet,
            spent,
            programs.last_time(cache, experiment),
            partial(programs.keep_time, cache, experiment),
        ) as progress,
        backend.open(experiment, progress.say) as agents,
    ):
        for sentence in filter(None, [*news, _spread(experiment.seeds)]):
            progress.say(sentence)
        if iteration < experiment.iterations:
            progress.compiling()
        else:
            progress.say(f"All {experiment.steps:,} steps are done. Ask for more with --steps.")
        state = agents.start() if loaded is None else loaded
        record = partial(_record, run, agents, watch, progress, outlets)
        pending: tuple[int, Metrics] | None = None
        while iteration < experiment.iterations and not stop and not end.reason(watch.best):
            try:
                state, metrics = agents.advance(state)
            except UserError:  # the state is still valid
                if pending:
                    record(*pending)
                if iteration > first:
                    _save(run, state, iteration)
                raise
            iteration += 1
            # The device runs this iteration while the host logs the previous one.
            if pending:
                record(*pending)
            pending = (iteration, metrics)
            if time.monotonic() - saved > every:
                # Log its row first: a run killed right after the checkpoint would resume without it.
                record(*pending)
                pending = None
                _save(run, state, iteration)
                saved = time.monotonic()
        if pending:
            record(*pending)
        _save(run, state, iteration)
        run.stopped = stop[0] if stop else 0
        if iteration < experiment.iterations:
            progress.say(_stopped(run, iteration, "" if stop else end.reason(watch.best)))
    return run


def _spread(seeds: int) -> str:
    """On how many of several devices the seeds train; empty if there is one."""
    there, used = jax.local_device_count(), compiled.devices(seeds)
    if there == 1:
        return ""
    hint = f" {seeds - seeds % there} seeds would use all of them." if seeds > there > used else ""
    return f"{counted(seeds, 'seed')} on {used} of {there} devices.{hint}"


def _stopped(run: Run, iteration: int, why: str) -> str:
    """How far a run is that ended before its last step, and how to continue it."""
    experiment = run.experiment
    done, planned = (count * experiment.steps_per_iteration for count in (iteration, experiment.iterations))
    far = f"after {done:,} of {counted(planned, 'step')} ({done / planned:.0%})"
    words = ["etd", "resume", str(run.path), *(word for module in plugins.named() for word in ("--import", module))]
    return f"{f'{why}: stopped' if why else 'Stopped'} {far} and saved. Continue with: {shlex.join(words)}"


def _record(
    run: Run,
    agents: Backend,
    watch: _Watch,
    progress: Progress,
    outlets: list[Sink],
    iteration: int,
    metrics: Metrics,
) -> None:
    host = agents.read(metrics)
    first = run.experiment.seed
    rows = []
    for index in range(run.experiment.seeds):
        seed = first + index
        values = {name: _number(column[index]) for name, column in host.items()}
        rows.append({"iteration": iteration, "seed": seed, **values, "wall": round(progress.elapsed(), 3)})
        if not host["alive"][index] and seed not in watch.frozen:
            watch.frozen.add(seed)
            progress.say(
                f"Seed {seed} hit a non-finite loss at step {values['step']:,}: it is frozen at its last good state, "
                "the others continue. Try a lower learning rate or max_grad_norm."
            )
    with _disk(run):
        run.log(rows)
    for outlet in outlets:
        outlet.log(rows)
    if np.min(host["episodes"]) >= run.experiment.num_envs:  # the first to end are the successful ones
        watch.best = float(np.min(host["return"]))
    progress.update(host)


def _number(value: Any) -> float:
    """An integer as is, a float to float32's seven digits."""
    number = value.item()
    return float(f"{number:.7g}") if isinstance(number, float) else int(number)


def _save(run: Run, state: TrainState, iteration: int) -> None:
    with _disk(run):
        run.save(state, iteration)


@contextmanager
def _disk(run: Run) -> Iterator[None]:
    """Say how to go on where nothing more can be written; the last checkpoint stays intact."""
    try:
        yield
    except files.DiskError as error:
        if not run.checkpoints():
            raise
        raise UserError(
            f"{error} The run's last checkpoint is intact: after that, run `etd resume {run.path}`."
        ) from error


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """A list that is no longer empty once the user or the system asks to stop. A second Ctrl-C interrupts at once."""
    caught: list[int] = []

    def ask(number: int, _: Any) -> None:
        caught.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    try:
        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread: the host program owns the signals
        yield caught
        return
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
