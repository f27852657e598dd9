"""Compare bonuses on environments: train every pair, then plot, tabulate and summarise the results."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from rich.console import Console
from rich.table import Table

from etd.bonuses import Bonus
from etd.core import files, plugins
from etd.core.errors import UserError
from etd.core.terminal import Terminal
from etd.envs import Task
from etd.lab.compare import devices
from etd.lab.compare import plan as plans
from etd.lab.compare.execute import check_options, execute
from etd.lab.compare.plan import Entry, Job, Plan
from etd.lab.report import statistics
from etd.lab.report import write as report
from etd.lab.report.curves import QUARTILES, Floats, band, by_seed, centre
from etd.lab.report.write import Judged
from etd.lab.runs.store import Run
from etd.training import presets
from etd.training.config import bonus_name

OUT = Path("runs/compare")

Runs: TypeAlias = Mapping[tuple[str, str], Run]
"""By task and method."""


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison. Returned by ``etd.compare``.

    >>> Comparison(runs={}, page=None, failures={("DoorKey", "etd"): "The disk is full."}, left=()).page is None
    True
    """

    runs: Runs
    """all that have trained at least one step"""
    page: Path | None
    """None if there is nothing to plot"""
    failures: Mapping[tuple[str, str], str]
    """errors, by task and method"""
    left: tuple[str, ...]
    """names TASK/METHOD of runs that are neither done nor failed"""
    stopped: int = 0
    """the signal that ended the training early; 0 if none did"""


def compare(
    envs: Any,
    bonuses: Any,
    *,
    seeds: int = 5,
    steps: int | None = None,
    out: str | Path = OUT,
    fields: Mapping[str, Any] | None = None,
    budget: float | None = None,
    workers: int = 1,
    cluster: str | None = None,
    keep: str | Path | None = None,
    quiet: bool = False,
) -> Comparison:
    """Train every bonus in every environment with the paper's settings, and write a page with the learning curves,
    interquartile means, intervals and probabilities of improvement.

    ``envs`` and ``bonuses`` are one or several names or objects, as in ``train``; a dictionary gives them names.
    Calling it again skips finished runs and resumes interrupted ones. Each run is in OUT/TASK/METHOD, the page is
    OUT/compare.html. ``steps`` are per seed, by default the preset's; ``fields`` override others by path, as in
    ``train``. ``budget`` is in minutes; ``workers`` train in parallel on this device; ``cluster`` is the address of a
    Ray cluster. ``keep`` is a folder for thinned copies, which are then plotted instead. A run that fails does not stop
    the others: see ``failures``.

    >>> import etd
    >>> small = {"num_envs": 4, "rollout_steps": 16, "ppo.minibatch": 32, "ppo.epochs": 1}
    >>> found = etd.compare("MiniGrid-Empty-5x5-v0", ["count", "none"], seeds=1, steps=64, fields=small, quiet=True)
    >>> sorted(found.runs)
    [('MiniGrid-Empty-5x5-v0', 'count'), ('MiniGrid-Empty-5x5-v0', 'none')]
    """
    check_options(workers, budget)
    if workers > 1:  # parallel processes must not each reserve most of the device's memory
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if not isinstance(fields or {}, Mapping):
        raise UserError(f"fields is {fields!r}; pass a dictionary of paths and values.")
    assignments = tuple((fields or {}).items())
    plan = plan_pairs(envs, bonuses, files.path_of(out), seeds=seeds, steps=steps, assignments=assignments)
    return carry_out(
        plan,
        "compare",
        budget=budget,
        workers=workers,
        cluster=cluster,
        keep=None if keep is None else files.path_of(keep),
        quiet=quiet,
    )


def plan_pairs(
    envs: Any,
    bonuses: Any,
    out: Path = OUT,
    *,
    seeds: int = 5,
    steps: int | None = None,
    assignments: tuple[plans.Assignment, ...] = (),
) -> Plan:
    """The runs of every bonus in every environment. An existing run with other settings is refused even if it is done:
    it would be plotted as what was asked for."""
    entries = [
        Entry(task, method, replace(presets.choose(env, bonus), seeds=seeds))
        for task, env in _named("environment", "--env MiniGrid-DoorKey-8x8-v0", envs, lambda env: Task.of(env).id)
        for method, bonus in _named("bonus", "--bonus etd", bonuses, _bonus_name)
    ]
    for one, other in combinations(entries, 2):
        if one.experiment == other.experiment:
            raise UserError(f"{one.method!r} and {other.method!r} are the same bonus. Name it once.")
    plan = plans.make(entries, out, steps=steps, assignments=assignments)
    for job in plan.jobs:
        plans.refuse_other_settings(job)
    return plan


def _named(kind: str, example: str, things: Any, name_of: Callable[[Any], str]) -> list[tuple[str, Any]]:
    """Each thing with its name; a UserError if there are none or a name occurs twice."""
    if isinstance(things, Mapping):
        pairs = [(str(name), thing) for name, thing in things.items()]
    else:
        several = things if isinstance(things, list | tuple) else [things]
        pairs = [(one.strip(), one.strip()) if isinstance(one, str) else (name_of(one), one) for one in several]
    if not pairs:
        raise UserError(f"Name at least one {kind}, as in {example}.")
    for name, count in Counter(name for name, _ in pairs).items():
        if count > 1:
            raise UserError(
                f"The {kind} {name!r} is named {count} times. Name it once; in Python, a dictionary can give each its "
                "own name."
            )
    return pairs


def _bonus_name(bonus: Any) -> str:
    return bonus_name(bonus) if isinstance(bonus, Bonus) else plugins.label(bonus)


def carry_out(
    plan: Plan,
    name: str,
    *,
    budget: float | None = None,
    workers: int = 1,
    cluster: str | None = None,
    keep: Path | None = None,
    judge: Callable[[Runs], Sequence[Judged]] = lambda _: (),
    quiet: bool = False,
) -> Comparison:
    """Train what is left of the plan, write the page NAME.html about all of it, with ``judge``'s verdicts on the
    finished runs, and print a summary."""
    check_options(workers, budget)
    for folder in filter(None, (plan.out, keep)):
        files.refuse_unwritable(folder, folder=True)
    if keep and keep.resolve() == plan.out.resolve():
        raise UserError(f"{keep} holds the runs themselves, which copies would overwrite. Choose another --keep.")
    console = Terminal(quiet=quiet)
    show(plan, workers, console)
    plan = execute(plan, budget=budget, workers=workers, cluster=cluster, quiet=quiet)
    shown = _kept(plan, keep) if keep else plan
    failed = [job for job in plan.jobs if job.error]
    runs, page = {_key(job): Run.open(job.path) for job in shown.jobs if job.steps > 0}, None
    _tell_failures(failed, console)
    if runs:
        finished = {_key(job): runs[_key(job)] for job in shown.jobs if job.done}
        errors = {job.entry.name: job.error for job in failed}
        page = report.write([run.path for run in runs.values()], shown.out / f"{name}.html", judge(finished), errors)
        console.print(summary(shown))
        for path in (page, *report.pictures(page)):
            console.print(f"Written: {path}", soft_wrap=True)
    else:
        console.print("Nothing has run yet, so there is nothing to plot.")
    left = tuple(job.entry.name for job in plan.jobs if not job.done and not job.error)
    if left:
        words = f"Left: {', '.join(left)}. Run the same command again to continue."
        console.print(words, soft_wrap=True)
    return Comparison(runs, page, {_key(job): job.error for job in failed}, left, plan.stopped)


def show(plan: Plan, workers: int, console: Console) -> None:
    """Print the plan and its notes."""
    check_options(workers)
    console.print(plans.table(plan, workers))
    for note in filter(None, (devices.sentence(plan.workers(workers)), *plan.notes)):
        console.print(note, soft_wrap=True)


def _key(job: Job) -> tuple[str, str]:
    return job.entry.task, job.entry.method


def _kept(plan: Plan, folder: Path) -> Plan:
    """Small copies for a repository of all that has run: records and thinned metrics, in the same directories."""
    copies = {job.path: folder / job.path.relative_to(plan.out) for job in plan.jobs}
    for job in plan.jobs:
        if job.steps > 0:
            Run.open(job.path).keep(copies[job.path])
    return replace(plan, out=folder, jobs=tuple(replace(job, path=copies[job.path]) for job in plan.jobs))


def _tell_failures(jobs: list[Job], console: Console) -> None:
    """Print every error in full, and only once if several runs share it."""
    by_words: dict[str, list[Job]] = {}
    for job in jobs:
        by_words.setdefault(job.error.strip(), []).append(job)
    for words, those in by_words.items():
        names = ", ".join(job.entry.name for job in those)
        console.print(f"Failed: {names}\n{words}", soft_wrap=True)
    if jobs:
        files = f"{jobs[0].path / plans.ERROR}" if len(jobs) == 1 else f"the {plans.ERROR} of each"
        console.print(f"Saved in {files}. Run the same command again to retry.", soft_wrap=True)


def summary(plan: Plan) -> Table:
    """Means of the final return by task and method, interquartile from four seeds on, with 95 % intervals."""
    jobs = {_key(job): job for job in plan.jobs}
    tasks, methods = (list(dict.fromkeys(key[part] for key in jobs)) for part in (0, 1))
    tall = len(methods) > len(tasks)  # the longer list becomes the rows
    rows, columns = (methods, tasks) if tall else (tasks, methods)
    ends = {key: _ends(job) for key, job in jobs.items() if job.steps}
    sizes = {len(values) for values in ends.values() if len(values) > 1}
    title = f"Final return: {_centre_of(sizes)} (95 % interval)" if sizes else "Final return"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for head in ("method" if tall else "task", *columns):
        table.add_column(head)
    for row in rows:
        keys = [(column, row) if tall else (row, column) for column in columns]
        table.add_row(row, *(_final(jobs[key], ends.get(key)) if key in jobs else "" for key in keys))
    return table


def _centre_of(sizes: set[int]) -> str:
    """What ``centre`` computes from these numbers of seeds."""
    if all(size >= QUARTILES for size in sizes):
        return "interquartile mean over seeds"
    if all(size < QUARTILES for size in sizes):
        return "mean over seeds"
    return "mean over seeds, interquartile from four seeds on"


def _ends(job: Job) -> Floats:
    """[S, 1] the last return of each seed that has one."""
    values = statistics.final(by_seed(Run.open(job.path), "return"))
    return values[np.isfinite(values)][:, None]


def _final(job: Job, values: Floats | None) -> str:
    if values is None:
        return "failed" if job.error else "not run"
    if not len(values):
        words = "too few episodes"
    elif len(values) == 1:
        words = f"{values[0, 0]:.2f} (one seed)"
    else:
        (low,), (high,) = band(values)
        words = f"{centre(values)[0]:.2f} ({low:.2f} to {high:.2f})"
    state = "failed" if job.error else "stopped"
    return words if job.done else f"{words}, {state} at {job.steps / job.goal:.0%}"
