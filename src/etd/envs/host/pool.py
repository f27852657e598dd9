"""The parent side of the pool: environments in worker processes that share memory with the parent.

A worker that dies is replaced, with a warning; its unfinished episodes are truncated at their last observation, and new
ones begin. One that hangs, with a single call of an environment that does not return, is killed after a while and
replaced likewise. If a worker is lost three times without finishing an episode in between, the run ends.
"""

from __future__ import annotations

import mmap
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from etd.core import plugins
from etd.core.errors import UserError
from etd.envs.custom import Factory
from etd.envs.families import registering_module
from etd.envs.host.env import HostEnv
from etd.envs.host.worker import Refusal, SharedArrays, Slot, WorkerConfig

DEATHS = 3
"""Deaths in a row that end the run."""
PATIENCE = 60.0
"""Seconds before a silent worker is reported; the pool keeps waiting, as a reset may be slow."""
TIMEOUT = 300.0
"""Seconds after which it counts as hung and is replaced, unless ETD_WORKER_TIMEOUT says otherwise."""
ALONE = {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1", "LP_NUM_THREADS": "0"}
"""A worker has one core, so its libraries should not start threads: neither linear algebra nor Mesa (without Mesa's
threads, a pool of MiniWorlds is 14 % faster)."""


class WorkerError(UserError):
    """A worker keeps dying; the message ends with the worker's own traceback, if it left one."""


def workers_here() -> int:
    """The number of worker processes: as many as available cores, unless ETD_WORKERS is set."""
    given = os.environ.get("ETD_WORKERS", "")
    if given and not (given.isdigit() and int(given)):
        raise UserError(f"ETD_WORKERS is {given!r}; it must be the number of worker processes, such as 8.")
    return int(given) if given else len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4


def timeout_here() -> float:
    """How many seconds one call of an environment may take: TIMEOUT, unless ETD_WORKER_TIMEOUT is set."""
    given = os.environ.get("ETD_WORKER_TIMEOUT", "")
    try:
        seconds = float(given or TIMEOUT)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise UserError(f"ETD_WORKER_TIMEOUT is {given!r}; it must be a number of seconds, such as 300, or inf.")
    return seconds


class WorkerPool:
    """M environments in ``groups`` that step in turn: one group steps while the policy acts for another.

    Arrays with leading axis M (SharedArrays) are shared with the workers: write ``action``, call ``step`` and ``wait``
    for a group, read the rest. A group's rows may be read between its ``wait`` and its next ``step``.
    """

    def __init__(
        self,
        env: HostEnv,
        names: list[tuple[int, int]],
        groups: list[int],
        stream: str = "train",
        tell: Callable[[str], None] = print,
    ):
        """``names`` [M]: seed and number of each environment; ``groups`` [M]: the group of each."""
        spec = env.spec
        self.tell, self.rows, self.groups = tell, len(names), np.array(groups)
        self.limit, self.losses = timeout_here(), 0
        size = SharedArrays(spec, self.rows, None).size
        shared = Path("/dev/shm")
        # An unnamed file: it disappears with the last process that has it open, however that process ends.
        self.file = tempfile.TemporaryFile(dir=shared if shared.is_dir() else None)  # noqa: SIM115
        self.file.truncate(size)
        if sys.platform == "linux":
            try:
                os.posix_fallocate(self.file.fileno(), 0, size)  # fail here, not in a worker, if memory is short
            except OSError as error:
                self.file.close()
                raise UserError(
                    f"{self.rows} environments of {env.id} need {size / 2**20:,.0f} MiB of shared memory; {shared} has "
                    "less. In Docker, raise --shm-size."
                ) from error
        self.block = SharedArrays(spec, self.rows, mmap.mmap(self.file.fileno(), size))
        slots = [Slot(row, group, *name) for row, (name, group) in enumerate(zip(names, groups, strict=True))]
        # Deal the slots out group by group, round robin: every worker has a share of every group.
        ordered = sorted(slots, key=lambda slot: slot.group)
        count = min(workers_here(), len(slots))
        imports = (*plugins.named(), *filter(None, [registering_module(env.id)]))
        orders = WorkerConfig(env.id, spec, [], self.rows, stream, False, _packed(env.factory), imports)
        self.workers: list[Worker] = []
        try:
            for index in range(count):
                self.workers.append(Worker(orders._replace(slots=ordered[index::count]), self.file.fileno()))
            for worker in self.workers:
                if isinstance(said := self._answer(worker), Refusal):
                    raise UserError(said)
                if isinstance(said, str):
                    raise UserError(f"{env.id} could not be created in a worker process:\n{said}")
        except BaseException:
            self.close()
            raise

    def begin(self, episode: np.ndarray, past: dict[int, tuple[np.ndarray, int]]) -> int:
        """Start the episodes numbered ``episode`` [M] and replay ``past``: by row, the actions and the fingerprint of
        the observation they led to. Returns how many led elsewhere; those episodes end at their next step."""
        self.block.episode[:] = episode
        for worker in self.workers:
            rows = {slot.row for slot in worker.orders.slots}
            worker.tell("begin", {row: done for row, done in past.items() if row in rows})
        return sum(self._answers())

    def step(self, group: int) -> None:
        """Let a group take its actions; returns at once."""
        self.block.acted[self.groups == group] = False
        for worker in self.workers:
            worker.tell("step", group)

    def wait(self) -> None:
        """Wait for the group that was asked to step first."""
        for worker, ended in zip(self.workers, self._answers(), strict=True):
            if ended:
                worker.deaths = 0

    def _answers(self) -> list[int]:
        """One answer from each worker; those that are lost are replaced until they answer."""
        answers = []
        for index in range(len(self.workers)):
            while isinstance(said := self._answer(self.workers[index]), str):
                self._revive(index, said)
            answers.append(said)
        return answers

    def _answer(self, worker: Worker) -> int | str:
        """A worker's answer, or how it was lost. One that is silent for longer than the limit is killed."""
        moment = min(1.0, PATIENCE / 4, self.limit / 4)
        while not worker.answers_within(moment):
            for one in self.workers:  # all of them: those that hang together are replaced together
                one.watch(self.block, moment)
            if worker.silent >= self.limit:
                worker.kill()
                return f"killed after hanging for {self.limit:g} s; ETD_WORKER_TIMEOUT sets this limit"
            if worker.silent >= PATIENCE > worker.silent - moment:
                self.tell(f"A worker of {worker.orders.env} has not answered for {PATIENCE:.0f} s; waiting.")
        worker.silent = 0.0
        return worker.hear()

    def _revive(self, index: int, why: str) -> None:
        """Replace a lost worker and resend the commands it did not answer."""
        old = self.workers[index]
        old.end()
        if isinstance(why, Refusal):
            raise WorkerError(why)
        *more, last = why.strip().splitlines()
        if old.deaths + 1 == DEATHS:
            own = f" Its last error was:\n{why}" if more else ""
            raise WorkerError(f"A worker of {old.orders.env} died {DEATHS} times in a row ({last}).{own}")
        self.losses += 1
        if _round(self.losses):
            total = f" {self.losses} have been replaced so far." if self.losses >= 10 else ""
            self.tell(
                f"A worker of {old.orders.env} died ({last}) and was replaced; its episodes were truncated.{total}"
            )
        new = Worker(old.orders._replace(revived=True), self.file.fileno())
        new.deaths = old.deaths + 1
        self.workers[index] = new
        if isinstance(said := self._answer(new), str):
            new.unanswered = old.unanswered
            self._revive(index, said)
            return
        for command in old.unanswered:
            new.tell(*command)

    def close(self) -> None:
        for worker in self.workers:
            worker.line.close()
        for worker in self.workers:
            worker.end()
        self.file.close()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class Worker:
    """A worker process and the connection to it."""

    def __init__(self, orders: WorkerConfig, memory: int):
        self.orders, self.deaths = orders, 0
        self.rows = [slot.row for slot in orders.slots]
        self.silent, self.calls = 0.0, -1
        """seconds without an answer or another call of an environment; the calls so far"""
        self.unanswered: deque[tuple[str, Any]] = deque()
        ours, theirs = socket.socketpair()
        with theirs:
            code = f"from etd.envs.host.worker import main; main({theirs.fileno()}, {memory}, {os.getpid()})"
            self.process = subprocess.Popen(
                [sys.executable, "-c", code],
                pass_fds=[theirs.fileno(), memory],
                start_new_session=True,  # keeps it from receiving signals sent to the parent's group
                env={**os.environ, **ALONE, "PYTHONPATH": search_path()},
            )
        self.line, self.answers = Connection(ours.detach()), select.poll()
        self.answers.register(self.line, select.POLLIN)  # once; ``line.poll`` would each time
        self._send(orders)

    def tell(self, command: str, argument: Any) -> None:
        self.unanswered.append((command, argument))
        self._send((command, argument))

    def _send(self, message: Any) -> None:
        with suppress(OSError):  # it is dead; ``hear`` will notice
            self.line.send_bytes(pickle.dumps(message))  # ``send`` makes a pickler of its own, which takes longer

    def answers_within(self, seconds: float) -> bool:
        """Whether it answers within ``seconds``; also true if it is dead."""
        return bool(self.answers.poll(1000 * seconds))

    def watch(self, block: SharedArrays, seconds: float) -> None:
        """Note whether it has called an environment in the ``seconds`` that have passed."""
        calls = int(block.calls[self.rows].sum())
        self.silent, self.calls = (self.silent + seconds if calls == self.calls else 0.0), calls

    def hear(self) -> int | str:
        """Its answer, or the error of a worker that failed or died."""
        try:
            said = self.line.recv()
            if not isinstance(said, str) and self.unanswered:  # the first answer only means ready
                self.unanswered.popleft()
            return said
        except (EOFError, OSError):
            code = self._gone()
            return f"killed by signal {-code}" if code < 0 else f"ended with exit status {code}"

    def end(self) -> None:
        """Close the connection, on which it exits; kill it if it is stuck."""
        self.line.close()
        self._gone()

    def _gone(self) -> int:
        """Wait for it to exit; its exit status."""
        try:
            return self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.process.wait()

    def kill(self) -> None:
        """Kill it and whatever it has started, such as a simulator: a session of its own is a group of its own."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


def _round(number: int) -> bool:
    """Whether all digits but the first are 0: the first losses are all told of, later ones ever more rarely."""
    return number % 10 ** (len(str(number)) - 1) == 0


def _packed(factory: Factory | None) -> bytes:
    """The factory pickled for a worker: by name if it has one, else by value, as in Gymnasium's vector environments."""
    if factory is None:
        return b""
    import cloudpickle  # comes with Gymnasium

    try:
        return cloudpickle.dumps(factory)
    except Exception as error:
        raise UserError(
            f"{plugins.label(factory.make)} cannot be sent to a worker process ({error}). Define it in a module."
        ) from error


def search_path() -> str:
    """A PYTHONPATH that lets the worker import whatever the parent can, such as modules that register environments."""
    return os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
