"""Train what a figure needs: resume what was interrupted, skip what is done, stop within a budget, draw.

A cell's run lies in OUT/TASK/METHOD. The same function trains a cell in this process, in worker processes side by side
on one device, or as a Ray task on a cluster; a worker that is lost is started again and resumes from the checkpoint.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from etd.core.errors import UserError
from etd.envs.host.pool import workers_here
from etd.lab.paper import claims, figures
from etd.lab.paper.figures import Cell
from etd.lab.report import write as report
from etd.lab.runs import session
from etd.lab.runs.config import check, from_dict, override, to_dict
from etd.lab.runs.store import Run
from etd.train import presets
from etd.train.experiment import Experiment

RATES = {"cpu": {1: 700.0}, "gpu": {1: 62_000.0, 5: 135_000.0, 32: 229_000.0}}
"""Steps per second of ETD by seeds trained together: two CPU cores; one H200. For estimates before anything has run."""
VECTORS = 6_000.0
"""Of one that sees vectors, on two CPU cores."""
CRAFTAX = {"cpu": 300.0, "gpu": 7_000.0}
"""Steps per second that Craftax's drawing allows, whoever learns from it."""
HOSTED = {"Crafter": 700.0, "MiniWorld": 1_000.0, "dmc": 6_500.0, "metaworld": 2_300.0, "HalfCheetah": 11_000.0}
"""Steps per second that each worker makes in an environment of the host."""
COMPILE = {"cpu": 30.0, "gpu": 60.0}
"""Seconds."""
LOSSES = 3
"""So often new worker processes take the place of killed ones."""


class Place(NamedTuple):
    """A cell and where its run stands."""

    cell: Cell
    path: Path
    steps: int
    """done so far, per seed"""

    @property
    def goal(self) -> int:
        experiment = self.cell.experiment
        return experiment.iterations * experiment.steps_per_iteration

    @property
    def done(self) -> bool:
        return self.steps >= self.goal


def plan(
    figure: str,
    out: Path,
    only: tuple[str, ...] = (),
    seeds: int | None = None,
    steps: int | None = None,
    quick: bool = False,
    assignments: tuple[str, ...] = (),
) -> list[Place]:
    """The figure's cells, or those that a pattern TASK/METHOD of ``only`` matches, and how far each is; ``assignments``
    override fields of all their experiments."""
    cells = figures.cells(figure)
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file, not a directory for runs. Choose another --out.")
    chosen = [cell for cell in cells if not only or any(_matches(cell, pattern) for pattern in only)]
    if not chosen:
        names = ", ".join(cell.name for cell in cells[:4])
        raise UserError(f"No cell of {figure!r} matches {' or '.join(only)}. Cells are named TASK/METHOD: {names}, ...")
    given: dict[str, Any] = {
        name: value for name, value in {"seeds": seeds, "steps": steps}.items() if value is not None
    }
    places = []
    for cell in map(figures.small, chosen) if quick else chosen:
        experiment = replace(cell.experiment, **given)
        for assignment in assignments:
            experiment = override(experiment, assignment)
        cell = replace(cell, experiment=check(experiment))
        path = out / cell.task.replace(" ", "-").replace("(", "").replace(")", "") / cell.method.replace("+", "-")
        place = Place(cell, path, _steps(path))
        if seeds is not None and place.done and (there := Run.open(path).experiment.seeds) != seeds:
            raise UserError(f"{path} is done with {there} seeds, not {seeds}. Choose another --out, or omit --seeds.")
        places.append(place)
    return places


def _matches(cell: Cell, pattern: str) -> bool:
    task, _, method = pattern.partition("/")
    return fnmatch(cell.task, task) and fnmatch(cell.method, method or "*")


def _steps(path: Path) -> int:
    """How far the run at ``path`` is; a checkpoint counts, logged rows after it or without any do not."""
    if not (path / "run.json").exists():
        return 0
    run = Run.open(path)
    newest = next(iter(run.checkpoints()), None)
    if newest is not None:
        return int(newest.stem) * run.experiment.steps_per_iteration
    table = run.metrics() if run.kept else {}
    return int(table["step"].max()) if table else 0


def estimate(place: Place, seen: float | None = None, quick: bool = False) -> float:
    """Seconds left for a cell on this device, by the rate ``seen`` in steps/s of all seeds, else by RATES."""
    if place.done:
        return 0.0
    return _seconds(place.cell.experiment, place.goal - place.steps, seen, quick)


def _seconds(experiment: Experiment, steps: int, seen: float | None = None, quick: bool = False) -> float:
    """For compiling, as ``train`` does it, and so many steps per seed."""
    platform = "cpu" if jax.default_backend() == "cpu" else "gpu"
    return COMPILE[platform] / (3 if quick else 1) + steps * experiment.seeds / (seen or _rate(experiment, platform))


def _rate(experiment: Experiment, platform: str) -> float:
    """Steps per second of all seeds, the environment's and the learner's time added up."""
    table, env = RATES[platform], experiment.env.id
    learner = float(np.interp(experiment.seeds, list(table), list(table.values())))
    if platform == "cpu" and presets.group_of(experiment.env) == "control":
        learner = VECTORS
    alone = CRAFTAX[platform] if env.startswith("Craftax") else np.inf
    hosted = next((rate * workers_here() for start, rate in HOSTED.items() if env.startswith(start)), alone)
    return 1 / (1 / learner + 1 / hosted)


def rate_seen(places: list[Place]) -> float | None:
    """Median steps per second of the runs that this device has made, or None."""
    here = jax.devices()[0].device_kind
    runs = [Run.open(place.path) for place in places if place.steps > 0]
    rates = [report.numbers(run).throughput for run in runs if run.record.get("device", {}).get("kind") == here]
    finite = [rate for rate in rates if np.isfinite(rate)]
    return float(np.median(finite)) if finite else None


def table(places: list[Place], quick: bool = False, workers: int = 1) -> Table:
    """The plan as a person reads it. Workers share the device; a gain is counted on only where most is compilation."""
    seen = rate_seen(places)
    device = jax.devices()[0].device_kind
    basis = f"{seen:,.0f} steps/s seen here" if seen else "rates of other machines"
    rows = Table(title=f"{len(places)} cells on {device} (times by {basis})", title_justify="left", box=None)
    for title, justify in (("cell", "left"), ("seeds", "right"), ("steps", "right"), ("", "left"), ("left", "right")):
        rows.add_column(title, justify=justify)  # type: ignore[arg-type]
    for place in places:
        share = place.steps / place.goal
        state = "done" if place.done else f"{share:.0%}" if place.steps else "to do"
        left = "" if place.done else _minutes(estimate(place, seen, quick))
        rows.add_row(place.cell.name, str(place.cell.experiment.seeds), f"{place.goal:,}", state, left)
    total = sum(estimate(place, seen, quick) for place in places) / (workers if quick else 1)
    rows.add_row("", "", "", "in all", _minutes(total))
    return rows


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:,.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def run(
    places: list[Place],
    budget: float | None = None,
    workers: int = 1,
    cluster: str | None = None,
    quick: bool = False,
) -> list[Place]:
    """Train what is not done; the places afterwards. ``budget`` in minutes, after which every cell is checkpointed, as
    it is after Ctrl-C or SIGTERM. What is in a cell's way is said before any is trained; a budget of 0 trains none."""
    deadline = None if budget is None else time.time() + 60 * budget
    todo = [place for place in places if not place.done]
    if budget is None or budget > 0:
        for place in todo:
            _refuse(place)
    alone = workers == 1 and cluster is None
    if not alone:  # longest first, so that none is left to train alone at the end
        todo.sort(key=lambda place: (place.steps - place.goal) * place.cell.experiment.seeds)
    console = Console(highlight=False)
    how = (deadline, quick, quick or not alone)
    # Absolute, for a worker of a cluster is in another directory.
    work = [(str(place.path.absolute()), to_dict(place.cell.experiment), *how) for place in todo]
    if alone:
        finished = _in_turn(work)
    elif cluster is None:
        finished = _side_by_side(work, workers, None if quick else 1)
    else:
        finished = _on_cluster(work, cluster)
    for index, steps in finished:
        place = todo[index]
        console.print(f"{place.cell.name}: {steps:,} of {place.goal:,} steps")
    return [place._replace(steps=_steps(place.path)) for place in places]


def train(path: str, data: dict[str, Any], deadline: float | None, quick: bool, quiet: bool) -> tuple[int, bool]:
    """Begin a cell's run or continue it; the steps done, and whether it was asked to stop. A cell that could not make
    an iteration before the deadline is not begun. All arguments are plain data, to travel to other machines."""
    where, experiment = Path(path), from_dict(data)
    least = _seconds(experiment, experiment.steps_per_iteration, quick=quick)
    if deadline is not None and time.time() + least > deadline:
        return _steps(where), False
    if quick:  # what runs for a moment is compiled in a third of the time, to slower code
        jax.config.update("jax_disable_most_optimizations", True)
    if not (where / "run.json").exists():
        run = session.train(experiment=experiment, out=where, deadline=deadline, quiet=quiet)
    else:
        run = session.resume(where, steps=experiment.steps, deadline=deadline, quiet=quiet)
    return _steps(where), run.stopped


def _refuse(place: Place) -> None:
    """A run in the cell's place that it cannot go on from."""
    if not (place.path / "run.json").exists():
        return
    there, wanted = Run.open(place.path), place.cell.experiment
    session.refuse_copy(there)
    if replace(there.experiment, steps=wanted.steps) != wanted:
        raise UserError(
            f"{there.path} holds a run with other settings. Choose another --out, or remove it; `etd report "
            f"{there.path}` shows what it is."
        )


def _in_turn(work: list[tuple]) -> Iterator[tuple[int, int]]:
    """One after the other in this process."""
    for index, job in enumerate(work):
        steps, stopped = train(*job)
        yield index, steps
        if stopped:
            return


def _side_by_side(work: list[tuple], workers: int, cells_each: int | None) -> Iterator[tuple[int, int]]:
    """In processes that share the device; a GPU with small agents is fuller with several. A process that ends after
    ``cells_each`` gives the device's memory back. Where one is killed, its pool ends and another goes on."""
    spawn = multiprocessing.get_context("spawn")  # forking a process that runs JAX's threads may hang it
    others = multiprocessing.active_children()
    left, losses = dict(enumerate(work)), 0
    with session.stop_signals() as stop:
        while left and not stop:
            pool = ProcessPoolExecutor(workers, spawn, _enter, (os.getpid(),), max_tasks_per_child=cells_each)
            try:
                jobs = {pool.submit(_in_worker, *job): index for index, job in left.items()}
                while jobs and not stop:
                    done: set[Future[int]] = wait(jobs, timeout=1, return_when=FIRST_COMPLETED).done
                    for job in done:
                        steps, index = job.result(), jobs.pop(job)
                        del left[index]
                        yield index, steps
            except BrokenProcessPool as error:
                losses += 1
                if losses > LOSSES and not stop:
                    raise UserError(
                        f"Workers were killed {losses} times, perhaps for want of memory. Try fewer --workers: "
                        "the same command goes on where it stopped."
                    ) from error
            finally:
                while stop and (ours := [child for child in multiprocessing.active_children() if child not in others]):
                    for child in ours:
                        child.terminate()  # a cell is checkpointed first
                    time.sleep(0.2)
                pool.shutdown(cancel_futures=True)


def _enter(parent: int) -> None:
    """A worker ends with its parent, which also tells it when to stop."""
    from etd.envs.host.worker import die_with

    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _in_worker(*job: Any) -> int:
    """The steps done. A worker that is asked to stop ends, or it would begin the next cell."""
    try:
        steps, stopped = train(*job)
    except KeyboardInterrupt:
        stopped = True
    if stopped:
        os._exit(1)
    return steps


def _on_cluster(work: list[tuple], address: str) -> Iterator[tuple[int, int]]:
    """As Ray tasks, one GPU each where there are any. The runs' directory must be one that all machines share."""
    try:
        ray = import_module("ray")
    except ImportError as error:
        raise UserError("Training on a cluster needs Ray: pip install 'etd[cluster]'") from error
    if not ray.is_initialized():
        try:
            ray.init(address=address, log_to_driver=False)
        except (ConnectionError, ValueError) as error:
            how = 'Start one with `ray start --head`, and name it "auto" or HOST:PORT.'
            raise UserError(f"No Ray cluster answers at {address!r}. {how}") from error
    gpus = 1 if ray.cluster_resources().get("GPU") else 0
    # A lost worker's task is submitted again, without end: it resumes from its checkpoint.
    remote: Any = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=-1)(train)
    jobs = {remote.remote(*job): index for index, job in enumerate(work)}
    while jobs:
        (job,), _ = ray.wait(list(jobs))
        steps, _ = ray.get(job)
        yield jobs.pop(job), steps


def keep(places: list[Place], folder: Path) -> list[Place]:
    """Copies for a repository of all that has run: records and thinned metrics, in the same order of directories."""
    kept = []
    for place in (place for place in places if place.steps > 0):
        copy = Run.open(place.path).keep(folder / place.path.parent.name / place.path.name)
        kept.append(place._replace(path=copy.path))
    return kept


def draw(figure: str, places: list[Place], out: Path) -> list[Path]:
    """The figure and its page, from whatever has run; nothing, and a sentence, if nothing has."""
    runs = [Run.open(place.path) for place in places if place.steps > 0]
    if not runs:
        Console(highlight=False).print("Nothing has run yet, so there is nothing to draw.")
        return []
    finished = {(p.cell.task, p.cell.method): Run.open(p.path) for p in places if p.done}
    page = report.write([run.path for run in runs], out / f"{figure}.html", claims.judge(figure, finished))
    return [page, *report.pictures(page)]
