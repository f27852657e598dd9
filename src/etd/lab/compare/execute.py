"""Train the runs of a plan: resume interrupted ones, skip finished ones, stop within a budget.

One loop serves them all, whether they train one after the other in this process, in parallel in worker processes, or as
tasks of a Ray cluster. A run that fails leaves its error in its directory and does not stop the others; one whose
worker is lost is resumed from its checkpoint.
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax

from etd.core import files, plugins
from etd.core.errors import UserError
from etd.core.limits import is_number, is_whole
from etd.core.terminal import Terminal
from etd.core.words import printable
from etd.envs import families
from etd.envs.host.pool import search_path
from etd.envs.host.worker import die_with
from etd.lab.compare import devices
from etd.lab.compare.plan import ERROR, Job, Plan, refuse_other_settings, seconds, steps_done
from etd.lab.runs import session
from etd.lab.runs.store import Run
from etd.training.config import unwritable
from etd.training.experiment import Experiment

LOSSES = 3
"""How often a run whose worker was killed is started again."""
LOOK = 1.0
"""Seconds between checks for a request to stop."""


class Work(NamedTuple):
    """One run to train, as sent to its worker."""

    name: str
    path: Path
    experiment: Experiment
    deadline: float | None
    quick: bool
    quiet: bool
    imports: tuple[str, ...]
    """modules that the user has named"""


class Ending(NamedTuple):
    """How the training of a run ended."""

    steps: int = 0
    stopped: int = 0
    """the signal that asked it to stop, after which it has saved; 0 if none did"""
    error: str = ""


class Runner(Protocol):
    """Where runs are trained."""

    room: int
    """how many at once"""

    def submit(self, work: Work) -> Hashable:
        """Start a run and return its handle."""

    def ended(self) -> list[tuple[Hashable, Ending | None]]:
        """Those that ended since the last call, None for a lost worker; waits a moment for any."""

    def cancel(self) -> None:
        """Ask running ones to save and stop, and start no more."""

    def close(self) -> None:
        """Kill whatever is still running."""


def execute(
    plan: Plan, *, budget: float | None = None, workers: int = 1, cluster: str | None = None, quiet: bool = False
) -> Plan:
    """Train what is not done and return the updated plan. After ``budget`` minutes, as after Ctrl-C or SIGTERM, every
    run is checkpointed. Runs that cannot be trained are refused before any starts; a budget of 0 starts none.
    """
    check_options(workers, budget)
    deadline = None if budget is None else time.time() + 60 * budget
    alone = workers == 1 and cluster is None
    todo = [job for job in plan.jobs if not job.done]
    if budget is None or budget > 0:
        for job in todo:
            _refuse(job, alone)
    if not alone:  # longest first, so that no long one is left to train alone at the end
        todo.sort(key=lambda job: (job.steps - job.goal) * job.entry.experiment.seeds)
    console = Terminal(quiet=quiet)

    def tell(index: int, ending: Ending) -> None:
        job = todo[index]
        state = "failed, see below" if ending.error else f"{ending.steps:,} of {job.goal:,} steps"
        console.print(f"{job.entry.name}: {state}", soft_wrap=True)

    # Absolute, because a cluster's workers run in another directory.
    how = (deadline, plan.quick, quiet or plan.quick or not alone, plugins.named())
    work = [Work(job.entry.name, job.path.absolute(), job.entry.experiment, *how) for job in todo]
    with session.stop_signals() as stop:
        runner: Runner
        if alone:
            runner = _Here(stop)
        elif cluster is None:
            runner = _Processes(plan.workers(workers), reuse=plan.quick)
        else:
            runner = _Cluster(cluster)
        drive(runner, work, stop, tell)
    return replace(plan.now(), stopped=stop[0] if stop else 0)


def check_options(workers: int, budget: float | None = None) -> None:
    """A UserError for a number of workers or minutes that makes no sense."""
    if not is_whole(workers, 1):
        raise UserError(f"{workers!r} workers cannot train anything. Ask for at least 1.")
    if budget is not None and not (is_number(budget) and budget >= 0):
        raise UserError(f"A budget of {budget!r} minutes cannot be kept. Give a number from 0.")


def drive(runner: Runner, work: list[Work], stop: list[int], tell: Callable[[int, Ending], None]) -> None:
    """Keep the runner busy until all work is done, or until ``stop`` fills and running work has saved. ``tell`` is
    called with the index and the ending of each."""
    waiting, running = deque(range(len(work))), dict[Hashable, int]()
    losses: Counter[int] = Counter()
    asked = False
    try:
        while waiting or running:
            if stop and not asked:
                asked = True
                waiting.clear()
                runner.cancel()
            while waiting and len(running) < runner.room and not stop:
                index = waiting.popleft()
                running[runner.submit(work[index])] = index
            for handle, ending in runner.ended() if running else ():
                index = running.pop(handle)
                if ending is not None and (stop or not ending.stopped):
                    tell(index, ending)
                elif not stop:  # killed, or stopped by someone else
                    losses[index] += 1
                    if losses[index] <= LOSSES:
                        waiting.appendleft(index)
                    else:
                        tell(index, _fail(work[index].path, _killed(losses[index])))
    finally:
        runner.close()


def _killed(times: int) -> str:
    return (
        f"Its worker was killed {times} times, perhaps because memory ran out. Run the same command with fewer "
        "--workers to continue."
    )


def _refuse(job: Job, alone: bool) -> None:
    """Raise a UserError if a job cannot be trained."""
    name = job.entry.experiment.env.id
    if (family := families.find(name)) and (absence := family.absence()):
        raise UserError(f"{name} {absence}")
    if (job.path / "run.json").exists():
        session.refuse_copy(Run.open(job.path))
        refuse_other_settings(job)
    if not alone and (lost := unwritable(job.entry.experiment)):
        raise UserError(
            f"No other process can train {job.entry.name}: {lost[0]}. Use one worker and no cluster, or define it in "
            "an importable module."
        )


# One training ----------------------------------------------------------------------------------------------------


def train(work: Work) -> Ending:
    """Start or resume a run, unless not even one iteration would finish before the deadline."""
    return _guarded(work.path, lambda: _train(work))


def train_elsewhere(path: str, data: bytes) -> Ending:
    """``train`` for work pickled in another process, whose modules may be missing in this one."""
    return _guarded(Path(path), lambda: _train(pickle.loads(data)))


def _train(work: Work) -> Ending:
    path, experiment = work.path, work.experiment
    plugins.trust(work.imports)
    least = seconds(experiment, experiment.steps_per_iteration, quick=work.quick)
    if work.deadline is not None and time.time() + least > work.deadline:
        return Ending(steps_done(path))
    if work.quick:
        jax.config.update("jax_disable_most_optimizations", True)
    if not (path / "run.json").exists():
        run = session.train(experiment=experiment, out=path, deadline=work.deadline, quiet=work.quiet)
    else:
        run = session.resume(path, steps=experiment.steps, deadline=work.deadline, quiet=work.quiet)
    (path / ERROR).unlink(missing_ok=True)
    return Ending(steps_done(path), run.stopped)


def _guarded(path: Path, call: Callable[[], Ending]) -> Ending:
    """The result of ``call``, or why it failed: a UserError as its sentence, anything else as its traceback."""
    try:
        return call()
    except UserError as error:
        return _fail(path, str(error))
    except Exception:
        return _fail(path, traceback.format_exc())


def _fail(path: Path, words: str) -> Ending:
    """Save the error in the run's directory."""
    with suppress(OSError):  # writing may be what failed
        path.mkdir(parents=True, exist_ok=True)
        files.write(path / ERROR, words)
    return Ending(error=words)


# Runners --------------------------------------------------------------------------------------------------------


class _Here:
    """One after the other in this process."""

    room = 1

    def __init__(self, stop: list[int]):
        self.stop = stop
        self.last: list[tuple[Hashable, Ending | None]] = []

    def submit(self, work: Work) -> Hashable:
        if not work.quiet:  # the output of training does not name the method
            print(f"{printable(work.name)}:", flush=True)
        ending = train(work)
        if ending.stopped:  # the signal arrived during training, which handled it
            self.stop.append(ending.stopped)
        self.last = [(work.path, ending)]
        return work.path

    def ended(self) -> list[tuple[Hashable, Ending | None]]:
        return self.last

    def cancel(self) -> None: ...

    def close(self) -> None: ...


class _Worker:
    """A process that trains what it is sent. A separate interpreter, not a ``multiprocessing`` process, which would run
    the user's script again."""

    def __init__(self, number: int, workers: int) -> None:
        self.number = number
        ours, theirs = socket.socketpair()
        with theirs:
            cores = devices.cores(number, workers)
            pin = f"import os; os.sched_setaffinity(0, {cores}); " if cores else ""  # before libraries start threads
            called = f"from etd.lab.compare.execute import serve; serve({theirs.fileno()}, {os.getpid()})"
            # Parallel processes must not each reserve most of the device's memory.
            share = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
            self.process = subprocess.Popen(
                [sys.executable, "-c", pin + called],
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # only the parent handles Ctrl-C
                env={**share, **os.environ, **devices.environment(number, workers), "PYTHONPATH": search_path()},
            )
        self.line = Connection(ours.detach())

    def begin(self, work: Work) -> None:
        with suppress(OSError):  # it is dead, which ``answer`` reports
            self.line.send((str(work.path), pickle.dumps(work)))

    def answer(self) -> Ending | None:
        """How its run ended; None if the worker died."""
        try:
            return self.line.recv()
        except (EOFError, OSError):
            return None

    def end(self, patience: float) -> None:
        """Close the line, which ends the worker; kill it if that takes longer than ``patience`` seconds."""
        self.line.close()
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def serve(line: int, parent: int) -> None:
    """A worker's main loop: train what comes over the line until it closes. It dies with its parent."""
    die_with(parent)
    orders = Connection(line)
    while True:
        try:
            path, data = orders.recv()
        except EOFError:
            return
        orders.send(train_elsewhere(path, data))


class _Processes:
    """In processes that share the devices: several small agents use a GPU better than one. Without ``reuse``, a process
    ends after its run and frees its devices' memory."""

    def __init__(self, workers: int, reuse: bool):
        self.room, self.reuse = workers, reuse
        self.free = list(range(workers))
        """numbers of workers that are not running, which say what devices they would have"""
        self.busy: list[_Worker] = []
        self.idle: list[_Worker] = []

    def submit(self, work: Work) -> Hashable:
        worker = self.idle.pop() if self.idle else _Worker(self.free.pop(0), self.room)
        self.busy.append(worker)
        worker.begin(work)
        return worker

    def ended(self) -> list[tuple[Hashable, Ending | None]]:
        found: list[tuple[Hashable, Ending | None]] = []
        ready = wait([worker.line for worker in self.busy], LOOK)
        for worker in [worker for worker in self.busy if worker.line in ready]:
            self.busy.remove(worker)
            ending = worker.answer()
            if ending is not None and self.reuse:
                self.idle.append(worker)
            else:
                worker.end(patience=10)
                self.free.append(worker.number)
            found.append((worker, ending))
        return found

    def cancel(self) -> None:
        for worker in self.busy:
            worker.process.terminate()  # its run is checkpointed first

    def close(self) -> None:
        for worker in self.idle:
            worker.end(patience=10)
        for worker in self.busy:
            worker.process.kill()
            worker.end(patience=10)


class _Cluster:
    """As Ray tasks, one GPU each if there are any. All machines must share the runs' directory."""

    room = sys.maxsize

    def __init__(self, address: str):
        try:
            self.ray: Any = import_module("ray")
        except ImportError as error:
            raise UserError("Training on a cluster needs Ray: pip install 'etd[cluster]'") from error
        if not self.ray.is_initialized():
            try:
                self.ray.init(address=address, log_to_driver=False)
            except (ConnectionError, ValueError) as error:
                how = 'Start one with `ray start --head`, and name it "auto" or HOST:PORT.'
                raise UserError(f"No Ray cluster answers at {address!r}. {how}") from error
        gpus = 1 if self.ray.cluster_resources().get("GPU") else 0
        # Ray itself resubmits a lost worker's task, without limit: machines of a cluster come and go.
        self.task: Any = self.ray.remote(num_cpus=1, num_gpus=gpus, max_retries=-1)(train_elsewhere)
        self.tasks: list[Any] = []

    def submit(self, work: Work) -> Hashable:
        self.tasks.append(self.task.remote(str(work.path), pickle.dumps(work)))
        return self.tasks[-1]

    def ended(self) -> list[tuple[Hashable, Ending | None]]:
        done, self.tasks = self.ray.wait(self.tasks, num_returns=len(self.tasks), timeout=LOOK)
        return [(task, self._outcome(task)) for task in done]

    def _outcome(self, task: Any) -> Ending | None:
        try:
            return self.ray.get(task)
        except self.ray.exceptions.RayError:  # lost for good, or cancelled
            return None

    def cancel(self) -> None:
        for task in self.tasks:
            self.ray.cancel(task)  # a running task sees Ctrl-C and is checkpointed first

    def close(self) -> None:
        for task in self.tasks:
            self.ray.cancel(task, force=True)
