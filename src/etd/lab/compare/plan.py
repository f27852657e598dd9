"""A comparison as a list of runs: which ones, how far each is, and how long the rest will take.

The run of a method on a task is in OUT/TASK/METHOD.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, TypeAlias

import jax
import numpy as np
from rich.table import Table

from etd.core import files
from etd.core.errors import UserError
from etd.core.words import counted
from etd.envs import remedy
from etd.envs.host.pool import workers_here
from etd.lab.report import write as report
from etd.lab.runs.store import Run
from etd.training import presets
from etd.training.config import assign, split
from etd.training.experiment import Experiment
from etd.training.validate import check

Assignment: TypeAlias = str | tuple[str, Any]
"""``path=value`` as on the command line, or path and value."""
ERROR = "error.txt"
"""The file in a run's directory that says why it failed."""


@dataclass(frozen=True)
class Entry:
    """One method on one task."""

    task: str
    method: str
    experiment: Experiment

    @property
    def name(self) -> str:
        return f"{self.task}/{self.method}"


@dataclass(frozen=True)
class Job:
    """The run of an entry, and how far it is."""

    entry: Entry
    path: Path
    steps: int = 0
    """done so far, per seed"""
    error: str = ""
    """why the last attempt failed"""

    @property
    def goal(self) -> int:
        experiment = self.entry.experiment
        return experiment.iterations * experiment.steps_per_iteration

    @property
    def done(self) -> bool:
        return self.steps >= self.goal


@dataclass(frozen=True)
class Plan:
    """The runs of a comparison."""

    jobs: tuple[Job, ...]
    out: Path
    quick: bool = False
    """compile in a third of the time, to slower code, for very short runs"""
    notes: tuple[str, ...] = ()
    """what the user should know before anything is trained"""
    stopped: int = 0
    """the signal that ended its training early; 0 if none did"""

    def workers(self, wanted: int) -> int:
        """At most one for each run that is left: one without a run would keep its share of the devices idle."""
        return max(1, min(wanted, sum(not job.done for job in self.jobs)))

    def now(self) -> Plan:
        """The same plan, with the current state of the directories."""
        return replace(self, jobs=tuple(job_at(job.entry, job.path) for job in self.jobs))


# Making ----------------------------------------------------------------------------------------------------------


def make(
    entries: Sequence[Entry],
    out: Path,
    *,
    only: tuple[str, ...] = (),
    seeds: int | None = None,
    steps: int | None = None,
    assignments: tuple[Assignment, ...] = (),
    quick: bool = False,
) -> Plan:
    """The runs of ``entries``, or of those that match a pattern TASK/METHOD in ``only``, and how far each is.

    ``assignments`` override fields of all experiments; a field of the bonus, only where the bonus has it.
    """
    with files.told(out, "read"):
        files.refuse_unseen(out)
        if out.exists() and not out.is_dir():
            raise UserError(f"{out} is a file, not a directory for runs. Choose another --out.")
    for name, count in Counter(entry.name for entry in entries).items():
        if count > 1:
            raise UserError(f"{count} runs are named {name!r}. Give each method on a task its own name.")
    chosen = [entry for entry in entries if not only or any(_matches(entry, pattern) for pattern in only)]
    if not chosen:
        names = ", ".join(entry.name for entry in entries[:4])
        raise UserError(f"No run matches {' or '.join(only)}. Runs are named TASK/METHOD: {names}, ...")
    given: dict[str, Any] = {
        name: value for name, value in {"seeds": seeds, "steps": steps}.items() if value is not None
    }
    chosen = [replace(entry, experiment=replace(entry.experiment, **given)) for entry in chosen]
    notes = []
    for assignment in assignments:
        chosen, without = _assign(chosen, assignment)
        if without:
            path = assignment if isinstance(assignment, str) else assignment[0]
            notes.append(f"{path} does not apply to {', '.join(without)}: no such field.")
    # Over all entries, so that a run's directory does not depend on which others are chosen.
    tasks, methods = (folders(getattr(entry, part) for entry in entries) for part in ("task", "method"))
    jobs = []
    for entry in chosen:
        first = remedy(entry.experiment.env.id)
        check(entry.experiment, make=not first)  # a plan can be looked at before its suite is installed
        if first and (note := f"Training needs: {first}") not in notes:
            notes.append(note)
        job = job_at(entry, out / tasks[entry.task] / methods[entry.method])
        if seeds is not None and job.done and (there := Run.open(job.path).experiment.seeds) != seeds:
            raise UserError(
                f"{job.path} is done with {counted(there, 'seed')}, not {seeds}. Choose another --out, or omit --seeds."
            )
        jobs.append(job)
    return Plan(tuple(jobs), out, quick, tuple(notes))


def _matches(entry: Entry, pattern: str) -> bool:
    task, _, method = pattern.partition("/")
    return fnmatch(entry.task, task) and fnmatch(entry.method, method or "*")


def _assign(entries: list[Entry], assignment: Assignment) -> tuple[list[Entry], list[str]]:
    """The entries with one assignment applied, and the methods whose bonus has no such field."""
    path, value = split(assignment) if isinstance(assignment, str) else assignment
    part, _, field = path.partition(".")
    able = {entry.name for entry in entries if part != "bonus" or hasattr(entry.experiment.bonus, field.split(".")[0])}
    if not able:  # a mistake, which the first entry reports
        able = {entries[0].name}
    changed = [
        replace(entry, experiment=assign(entry.experiment, path, value)) if entry.name in able else entry
        for entry in entries
    ]
    return changed, list(dict.fromkeys(entry.method for entry in entries if entry.name not in able))


def folders(names: Iterable[str]) -> dict[str, str]:
    """A directory name for each, of characters that every file system allows. Names that come out the same, ignoring
    case, get a checksum of the original appended."""
    plain = {name: _plain(name) for name in names}
    taken = Counter(folder.lower() for folder in plain.values())
    return {
        name: folder
        if folder and taken[folder.lower()] == 1
        else f"{folder}-{zlib.crc32(name.encode()):08x}".strip("-")
        for name, folder in plain.items()
    }


def _plain(name: str) -> str:
    words = re.sub(r"[()]", "", name.replace("*", "x"))
    return re.sub(r"[^A-Za-z0-9._=]+", "-", words).strip("-.")[:100]


def job_at(entry: Entry, path: Path) -> Job:
    """How far the entry's run at ``path`` is."""
    job = Job(entry, path, steps_done(path))
    file = path / ERROR
    return (
        job
        if job.done or not file.is_file()
        else replace(job, error=file.read_text(encoding="utf-8", errors="replace"))
    )


def steps_done(path: Path) -> int:
    """Steps of the run at ``path`` up to its newest checkpoint; in a kept copy, which has none, up to its last row."""
    if not (path / "run.json").exists():
        return 0
    run = Run.open(path)
    newest = next(iter(run.checkpoints()), None)
    if newest is not None:
        return int(newest.stem) * run.experiment.steps_per_iteration
    table = run.metrics() if run.kept else {}
    return int(table["step"].max()) if "step" in table else 0


def refuse_other_settings(job: Job) -> None:
    """Refuse a run of another experiment in the job's directory; only the number of steps may differ."""
    if not (job.path / "run.json").exists():
        return
    there, wanted = Run.open(job.path).experiment, job.entry.experiment
    if replace(there, steps=wanted.steps) != wanted:
        raise UserError(
            f"{job.path} holds a run with other settings. Choose another --out, or remove it; `etd report {job.path}` "
            "shows what it is."
        )


# Time ------------------------------------------------------------------------------------------------------------

RATES = {"cpu": {1: 700.0}, "gpu": {1: 62_000.0, 5: 135_000.0, 32: 229_000.0}}
"""Steps per second of ETD by number of seeds, on two CPU cores and on one H200; for estimates before the first run."""
VECTORS = 6_000.0
"""The same with vector observations, on two CPU cores."""
COMPILE = {"cpu": 30.0, "gpu": 60.0}
"""Seconds to compile."""


def steps_per_second(experiment: Experiment, platform: str) -> float:
    """Of all seeds together, adding the environment's and the learner's time; ``platform`` is "cpu" or "gpu"."""
    table, family = RATES[platform], experiment.env.family
    learner = float(np.interp(experiment.seeds, list(table), list(table.values())))
    if platform == "cpu" and presets.group_of(experiment.env) == "control":
        learner = VECTORS
    rates = family.rates if family else {}
    allowed = rates["worker"] * workers_here() if "worker" in rates else rates.get(platform, np.inf)
    return 1 / (1 / learner + 1 / allowed)


def seconds(experiment: Experiment, steps: int, seen: float | None = None, quick: bool = False) -> float:
    """To compile and train this many steps per seed on this device, at the rate ``seen`` in steps/s of all seeds, or
    else at ``steps_per_second``."""
    platform = "cpu" if jax.default_backend() == "cpu" else "gpu"
    rate = seen or steps_per_second(experiment, platform)
    return COMPILE[platform] / (3 if quick else 1) + steps * experiment.seeds / rate


def estimate(job: Job, seen: float | None = None, quick: bool = False) -> float:
    """Seconds left for a job on this device."""
    return 0.0 if job.done else seconds(job.entry.experiment, job.goal - job.steps, seen, quick)


def rate_seen(plan: Plan) -> float | None:
    """Median steps per second of the runs trained on this kind of device, or None."""
    here = jax.devices()[0].device_kind
    runs = [Run.open(job.path) for job in plan.jobs if job.steps > 0]
    rates = [report.numbers(run).throughput for run in runs if run.record.get("device", {}).get("kind") == here]
    finite = [rate for rate in rates if np.isfinite(rate)]
    return float(np.median(finite)) if finite else None


def table(plan: Plan, workers: int = 1) -> Table:
    """The plan as a table for the terminal. Workers that share a device are assumed to save time only in quick plans,
    which mostly compile."""
    seen = rate_seen(plan)
    device = jax.devices()[0].device_kind
    basis = f"{seen:,.0f} steps/s measured here" if seen else "rates of other machines"
    runs = counted(len(plan.jobs), "run")
    rows = Table(title=f"{runs} on {device} (times estimated from {basis})", title_justify="left", box=None)
    for title in ("task/method", "seeds", "steps", "", "left"):
        rows.add_column(title, justify="left" if title in ("task/method", "") else "right")
    for job in plan.jobs:
        state = (
            "done" if job.done else "failed" if job.error else f"{job.steps / job.goal:.0%}" if job.steps else "to do"
        )
        left = "" if job.done else _minutes(estimate(job, seen, plan.quick))
        rows.add_row(job.entry.name, str(job.entry.experiment.seeds), f"{job.goal:,}", state, left)
    at_once = workers if plan.quick else min(workers, jax.local_device_count())
    total = sum(estimate(job, seen, plan.quick) for job in plan.jobs) / at_once
    rows.add_row("", "", "", "total", _minutes(total))
    return rows


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:,.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
