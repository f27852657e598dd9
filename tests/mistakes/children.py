"""Commands and calls, each in a forked child of one process that has imported etd but not started JAX's backend."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

PATIENCE = 120.0
"""Seconds that a child may take."""


@dataclass(frozen=True)
class Row:
    """One mistake and how it should end."""

    what: str
    """the words of a command, or Python code that begins with ``etd.`` or an import"""
    says: str
    """a pattern of its sentence"""
    status: int = 2
    files: dict[str, str] = field(default_factory=dict)
    """text of files that lie in the working directory before; latin-1, so that any byte can be written"""
    env: dict[str, str] = field(default_factory=dict)
    """environment variables"""
    when: str = ""
    """a state of the system, one of STATES"""
    leaves: bool = False
    """whether files may come or go"""
    own: bool = False
    """whether the user's own traceback is expected"""
    id: str = ""

    @property
    def name(self) -> str:
        return self.id or (self.what if len(self.what) < 90 else f"{self.what[:80]}...{len(self.what)}")


@dataclass(frozen=True)
class Ended:
    """How a child ended."""

    status: int
    """negative for a signal"""
    said: str
    """on stderr, on one line"""
    printed: str
    changed: list[str]
    """files and folders that came or went"""


class Parent:
    """The client's side: a server in a process of its own, since pytest's may have started the backend."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.mistakes.children"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).resolve().parents[2],
        )

    def run(self, row: Row) -> Ended:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(asdict(row)) + "\n")
        self.process.stdin.flush()
        return Ended(**json.loads(self.process.stdout.readline()))

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(30)


# The server's side -----------------------------------------------------------------------------------------------


def serve() -> None:
    """Run rows from stdin, each in a child and a folder of its own, until it closes."""
    for module in ("runs.session", "runs.evaluate", "compare.compare", "paper.reproduce", "mazes.studies"):
        __import__(f"etd.lab.{module}")
    for module in ("film.watch", "live.serve", "report.write", "check.bonus"):
        __import__(f"etd.lab.{module}")
    for module in ("against", "training", "seeds", "speed", "host"):
        __import__(f"etd.lab.bench.{module}")
    _warm()
    sources = tempfile.mkdtemp()
    made = _forked(Path(sources), Row("", ""), _make_run)
    assert made.status == 0, made.said
    for line in sys.stdin:
        row = Row(**json.loads(line))
        with tempfile.TemporaryDirectory(prefix="mistakes-") as folder:
            place = Path(folder) / "here"
            shutil.copytree(Path(sources) / "here", place, symlinks=True)
            for name, text in row.files.items():
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                (place / name).write_bytes(text.encode("latin-1"))
            print(json.dumps(asdict(_forked(Path(folder), row, _perform))), flush=True)
    shutil.rmtree(sources)


def _warm() -> None:
    """Parse a command of each kind, so that its children need not do so for the first time."""
    from etd.cli import BENCHMARKS, COMMANDS, main

    for words in (*([command] for command in COMMANDS if command != "bench"), *(["bench", one] for one in BENCHMARKS)):
        with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
            main([*words, "--nothing"])
    gc.collect()
    gc.freeze()  # what is not touched is not copied


def _forked(folder: Path, row: Row, work: Callable[[Row], None]) -> Ended:
    place = folder / "here"
    place.mkdir(exist_ok=True)
    before = set(_inside(place))
    out, err = folder / "out", folder / "err"
    child = os.fork()
    if child == 0:
        _become(row, place, out, err)
        os._exit(_status(row, work))
    deadline, code = time.monotonic() + PATIENCE, None
    while code is None and time.monotonic() < deadline:
        pid, ended = os.waitpid(child, os.WNOHANG)
        code = os.waitstatus_to_exitcode(ended) if pid else None
        time.sleep(0.002)
    if code is None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        code = -int(signal.SIGALRM)
    changed = sorted(set(_inside(place)) ^ before)
    said = " ".join(err.read_text(errors="replace").replace("│", " ").split())
    return Ended(code, said, out.read_text(errors="replace"), changed)


def _inside(place: Path) -> Iterator[str]:
    return (str(path.relative_to(place)) for path in place.rglob("*") if path.name != "__pycache__")


def _become(row: Row, place: Path, out: Path, err: Path) -> None:
    """A process of its own in that folder, as a shell would start one."""
    os.chdir(place)
    sys.dont_write_bytecode = True
    sys.path[0] = str(place)
    for number, file in ((0, os.devnull), (1, out), (2, err)):
        os.dup2(os.open(file, os.O_RDWR | os.O_CREAT, 0o666), number)
    os.environ |= {"COLUMNS": "200", **row.env}
    if "JAX_PLATFORMS" in row.env:  # JAX has read it already
        import jax

        jax.config.update("jax_platforms", row.env["JAX_PLATFORMS"])
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    if row.when:
        STATES[row.when]()


def _status(row: Row, work: Callable[[Row], None]) -> int:
    """What Python itself would make of how ``work`` ends."""
    try:
        work(row)
        sys.stdout.flush()
        status = 0
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    return status


def _perform(row: Row) -> None:
    from etd.core.errors import UserError

    if not row.what.startswith(("etd.", "import ", "from ")):
        import shlex

        from etd.cli import main

        main(shlex.split(row.what))
        return
    import etd

    try:
        exec(row.what, {"etd": etd, "inf": float("inf"), "nan": float("nan")})
    except UserError as error:
        print(f"etd: {error}", file=sys.stderr)
        sys.exit(2)


def _make_run(_: Row) -> None:
    """``run``: one that was never trained but has a checkpoint; ``empty``, a folder; ``file``, a file."""
    import jax
    import numpy as np

    from etd.lab.runs.store import Run
    from etd.training import backend
    from etd.training.experiment import Experiment

    experiment = Experiment("MiniGrid-Empty-5x5-v0", "count", num_envs=4, rollout_steps=128, steps=1024)
    run = Run.create(Path("run"), experiment)
    shapes = backend.shapes(run.experiment)

    def zero(leaf: Any) -> Any:
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.split(jax.random.key(0), leaf.shape)
        return np.zeros(leaf.shape, leaf.dtype)

    run.log([{"iteration": 1, "seed": 0, "step": 64, "return": 0.0, "success": 0.0, "alive": 1, "wall": 1.0}])
    run.save(jax.tree.map(zero, shapes), 1)
    Path("empty").mkdir()
    Path("file").write_text("not a folder")


def _nobody() -> None:
    """Somebody who may write nowhere here; a test that runs as root could."""
    Path("file").chmod(0o600)
    Path.cwd().parent.chmod(0o711)
    for path in [Path.cwd(), *Path.cwd().rglob("*")]:
        path.chmod(0o555 if path.is_dir() else path.stat().st_mode & 0o444)
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)


def _limited() -> None:
    """No file may be larger than this."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))


def _full() -> None:
    """The folder ``full`` is a disk that is full, where this process may mount one; else as ``_limited``."""
    system, place = ctypes.CDLL(None, use_errno=True), Path("full")
    place.mkdir()
    new_namespace, private = 0x20000, 0x4000 | 0x40000
    refused = system.unshare(new_namespace) or system.mount(b"none", b"/", None, private, None)
    if refused or system.mount(b"tmpfs", bytes(place.absolute()), b"tmpfs", 0, b"size=4k"):
        _limited()
        return
    with contextlib.suppress(OSError):
        (place / "filler").write_bytes(bytes(1 << 20))


def _deaf() -> None:
    """Nothing can be written to the output."""
    os.dup2(os.open("/dev/full", os.O_WRONLY), 1)


def _closed() -> None:
    """Nobody reads the output any more."""
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, 1)


STATES: dict[str, Callable[[], None]] = {
    "nobody": _nobody,
    "full": _full,
    "limited": _limited,
    "deaf": _deaf,
    "closed": _closed,
}

if __name__ == "__main__":
    serve()
