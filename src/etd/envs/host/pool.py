"""The parent's side: environments in worker processes that share memory with it.

A worker that dies is replaced, with a warning; the episodes it was in the midst of end, truncated, where they were last
seen, and new ones begin. One that dies three times without finishing an episode in between ends the run.
"""

from __future__ import annotations

import mmap
import os
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
"""So many in a row are too many."""
PATIENCE = 60.0
"""Seconds after which a silent worker is told of; as a reset may be slow, it is waited for all the same."""
ALONE = {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1", "LP_NUM_THREADS": "0"}
"""A worker has one core, so what it calls should not make threads: not linear algebra, nor Mesa, with which a pool of
MiniWorlds is 14 % faster without any."""


class WorkerError(UserError):
    """An environment cannot be kept alive; the message ends with its worker's own traceback."""


def workers_here() -> int:
    """As many processes as this one may use cores; the variable ETD_WORKERS names another number."""
    given = os.environ.get("ETD_WORKERS", "")
    if given and not (given.isdigit() and int(given)):
        raise UserError(f"ETD_WORKERS is {given!r}; it must be the number of worker processes, such as 8.")
    return int(given) if given else len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4


class WorkerPool:
    """M environments in ``groups`` that step in turn, so that one group steps while the policy looks at another.

    Arrays with leading axis M (SharedArrays) are shared with the workers: write ``action``, call ``step`` and ``wait``
    of a group, read the rest. Everything of a group may be read from its ``wait`` to its next ``step``.
    """

    def __init__(
        self,
        env: HostEnv,
        names: list[tuple[int, int]],
        groups: list[int],
        stream: str = "train",
        tell: Callable[[str], None] = print,
    ):
        """``names`` [M]: seed and number of each environment; ``groups`` [M]: which group each is in."""
        spec = env.spec
        self.tell, self.rows, self.groups = tell, len(names), np.array(groups)
        size = SharedArrays(spec, self.rows, None).size
        shared = Path("/dev/shm")
        # A file without a name: it vanishes with the last process that has it open, however that ends.
        self.file = tempfile.TemporaryFile(dir=shared if shared.is_dir() else None)  # noqa: SIM115
        self.file.truncate(size)
        if sys.platform == "linux":
            try:
                os.posix_fallocate(self.file.fileno(), 0, size)  # too little memory is met now, not in a worker
            except OSError as error:
                self.file.close()
                raise UserError(
                    f"{self.rows} environments of {env.id} need {size / 2**20:,.0f} MiB of shared memory; {shared} has "
                    "less. In Docker, --shm-size sets it."
                ) from error
        self.block = SharedArrays(spec, self.rows, mmap.mmap(self.file.fileno(), size))
        slots = [Slot(row, group, *name) for row, (name, group) in enumerate(zip(names, groups, strict=True))]
        # Row by row, group by group, to one worker after the other: every worker has a share of every group.
        ordered = sorted(slots, key=lambda slot: slot.group)
        count = min(workers_here(), len(slots))
        imports = (*plugins.named(), *filter(None, [registering_module(env.id)]))
        orders = WorkerConfig(env.id, spec, [], self.rows, stream, False, _packed(env.factory), imports)
        self.workers: list[Worker] = []
        try:
            for index in range(count):
                self.workers.append(Worker(orders._replace(slots=ordered[index::count]), self.file.fileno()))
            for worker in self.workers:
                if isinstance(said := worker.hear(), Refusal):
                    raise UserError(said)
                if isinstance(said, str):
                    raise UserError(f"{env.id} could not be made in a worker process:\n{said}")
        except BaseException:
            self.close()
            raise

    def begin(self, episode: np.ndarray, past: dict[int, tuple[np.ndarray, int]]) -> int:
        """Start the episodes numbered ``episode`` [M], and do again what was done in them: by row, the actions and
        the fingerprint of what they led to. How many led elsewhere; those end at their next step."""
        self.block.episode[:] = episode
        for worker in self.workers:
            rows = {slot.row for slot in worker.orders.slots}
            worker.tell("begin", {row: done for row, done in past.items() if row in rows})
        return sum(self._answers())

    def step(self, group: int) -> None:
        """Let a group do its actions; returns at once."""
        self.block.acted[self.groups == group] = False
        for worker in self.workers:
            worker.tell("step", group)

    def wait(self) -> None:
        """Until the group that was told to step first has done so."""
        for worker, ended in zip(self.workers, self._answers(), strict=True):
            if ended:
                worker.deaths = 0

    def _answers(self) -> list[int]:
        """One of each worker; the dead are replaced until theirs comes."""
        answers = []
        for index, worker in enumerate(self.workers):
            if not worker.answers_within(PATIENCE):
                self.tell(f"A worker of {worker.orders.env} has not answered for {PATIENCE:.0f} s; waiting.")
            while isinstance(said := self.workers[index].hear(), str):
                self._revive(index, said)
            answers.append(said)
        return answers

    def _revive(self, index: int, why: str) -> None:
        """Put a new worker in a dead one's slot, and tell it what the dead one did not answer."""
        old = self.workers[index]
        old.end()
        if isinstance(why, Refusal):
            raise WorkerError(why)
        last = why.strip().splitlines()[-1]
        if old.deaths + 1 == DEATHS:
            raise WorkerError(
                f"A worker of {old.orders.env} died {DEATHS} times in a row ({last}). The last time it said:\n{why}"
            )
        self.tell(f"A worker of {old.orders.env} died ({last}) and was replaced; its episodes end here, truncated.")
        new = Worker(old.orders._replace(revived=True), self.file.fileno())
        new.deaths = old.deaths + 1
        self.workers[index] = new
        if isinstance(said := new.hear(), str):
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
    """A worker process and the line to it."""

    def __init__(self, orders: WorkerConfig, memory: int):
        self.orders, self.deaths = orders, 0
        self.unanswered: deque[tuple[str, Any]] = deque()
        ours, theirs = socket.socketpair()
        with theirs:
            code = f"from etd.envs.host.worker import main; main({theirs.fileno()}, {memory}, {os.getpid()})"
            self.process = subprocess.Popen(
                [sys.executable, "-c", code],
                pass_fds=[theirs.fileno(), memory],
                start_new_session=True,  # a signal to the parent's group is not for it
                env={**os.environ, **ALONE, "PYTHONPATH": search_path()},
            )
        self.line = Connection(ours.detach())
        self._send(orders)

    def tell(self, command: str, argument: Any) -> None:
        self.unanswered.append((command, argument))
        self._send((command, argument))

    def _send(self, message: Any) -> None:
        with suppress(OSError):  # it is dead; that is heard when an answer is asked for
            self.line.send(message)

    def answers_within(self, seconds: float) -> bool:
        """Whether there is something to hear by then, be it that it is dead."""
        try:
            return self.line.poll(seconds)
        except OSError:
            return True

    def hear(self) -> int | str:
        """Its answer, or the last words of a worker that failed or died."""
        try:
            said = self.line.recv()
            if not isinstance(said, str) and self.unanswered:  # the first answer says that it is ready
                self.unanswered.popleft()
            return said
        except (EOFError, OSError):
            code = self._gone()
            return f"killed by signal {-code}" if code < 0 else f"ended with exit status {code}"

    def end(self) -> None:
        """It ends by itself when the line closes; if it is stuck, it is killed."""
        self.line.close()
        self._gone()

    def _gone(self) -> int:
        """Its exit status."""
        try:
            return self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def _packed(factory: Factory | None) -> bytes:
    """The factory for a worker: by name where it has one, else by value, as Gymnasium's own vector environments do."""
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
    """What the parent can import, the worker can: this very package, and modules that register environments."""
    return os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
