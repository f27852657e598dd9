"""One trial: start a training, interrupt it, go on, and compare its end with that of an uninterrupted one."""

from __future__ import annotations

import csv
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.campaign import power

ROOT = Path(__file__).resolve().parents[2]
STATUS = {signal.SIGKILL: (-9,), signal.SIGTERM: (143, -15), signal.SIGINT: (130, -2)}
"""Exit statuses of a process that a signal has ended: after a checkpoint, or before it could write one."""
PATIENCE = 300.0
"""Seconds after which a process that does not end has failed."""

STEPS = 2560
_PPO = {"ppo.minibatch": 32, "ppo.features": 8, "ppo.latent": 8, "ppo.epochs": 1, "ppo.norm": "none"}
_ETD = {"bonus.minibatch": 32, "bonus.features": 8, "bonus.latent": 8, "bonus.embedding": 8, "bonus.epochs": 1}


def _sets(fields: dict[str, object]) -> list[str]:
    return [word for name, value in fields.items() for word in ("--set", f"{name}={value}")]


SMALL = _sets({"num_envs": 4, "rollout_steps": 16, **_PPO})
ONE = {
    "device": ["--env", "MiniGrid-Empty-5x5-v0", "--bonus", "etd", *SMALL, *_sets(_ETD)],
    "host": ["--env", "gymnasium:CartPole-v1", "--bonus", "count", *SMALL],
}
"""Words of ``etd train``."""
MANY = {
    "device": ["reproduce", "symmetry", "--quick", *SMALL, *_sets(_ETD)],
    "host": ["compare", "--env", "gymnasium:CartPole-v1", "--bonus", "count", "--bonus", "none", *SMALL],
}
"""Commands of two runs side by side."""


@dataclass(frozen=True)
class Case:
    """What is interrupted, and how."""

    env: str
    phase: str
    """train, resume or many"""
    how: str
    """SIGKILL, SIGTERM, SIGINT or cut"""


CASES = [
    Case(env, phase, how)
    for how in ("SIGKILL", "SIGTERM", "SIGINT", "cut")
    for phase in ("train", "resume", "many")
    for env in ("device", "host")
]


@dataclass
class Whole:
    """An uninterrupted training."""

    folder: Path
    begun: float
    """seconds to the first row of metrics"""
    rows: int
    """bytes of metrics"""


class TrialError(Exception):
    """What a trial should not have left behind."""


@dataclass
class Trial:
    """The trainings of ``case`` in an empty ``folder``."""

    case: Case
    folder: Path
    chance: random.Random
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    """by which its processes are found"""
    cuts: int = 0
    """of power, so far"""

    @property
    def out(self) -> Path:
        return self.folder / "place" / "run"

    @property
    def disk(self) -> Path:
        return self.folder / f"disk{self.cuts}"

    # Processes ---------------------------------------------------------------------------------------------------

    def command(self) -> list[str]:
        """What begins the training, or goes on with it."""
        rest = ["--steps", str(STEPS), "--seeds", "1", "--out", "run"]
        if self.case.phase == "many":
            return [*MANY[self.case.env], *rest, "--workers", "2"]
        if (self.out / "run.json").exists():
            return ["resume", "run", "--steps", str(STEPS)]
        return ["train", *ONE[self.case.env], *rest]

    def launch(self, command: list[str]) -> subprocess.Popen:
        path = [str(Path(__file__).parent / "recorder")] if self.case.how == "cut" else []
        inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        env = {
            "JAX_COMPILATION_CACHE_DIR": str(self.folder.parent / "programs"),
            **os.environ,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
            "PYTHONPATH": os.pathsep.join([*path, str(ROOT / "src"), str(ROOT), *filter(None, inherited)]),
            "ETD_SAVE_EVERY": self.chance.choice(["0", "0.1", "0.5"]),
            "ETD_WORKERS": "2",
            "CAMPAIGN_MARK": self.mark,
        }
        if self.case.how == "cut":
            if not self.disk.exists():
                power.settle(self.out.parent, self.disk)
            env |= {"CAMPAIGN_ROOT": str(self.out.parent), "CAMPAIGN_DISK": str(self.disk)}
        with (self.folder / "said.txt").open("a") as said:
            said.write(f"$ etd {' '.join(command)}\n")
            said.flush()
            return subprocess.Popen(
                [sys.executable, "-m", "etd", *command], cwd=self.out.parent, env=env, stdout=said, stderr=said
            )

    def finish(self) -> Whole:
        """Train to the end without an interruption."""
        self.out.parent.mkdir(parents=True, exist_ok=True)
        start = time.monotonic()
        process, begun = self.launch(self.command()), 0.0
        while process.poll() is None:
            if not begun and self._rows():
                begun = time.monotonic() - start
            time.sleep(0.02)
            if time.monotonic() - start > PATIENCE:
                process.kill()
                raise TrialError("the last training did not end")
        if process.returncode:
            raise TrialError(f"the last training ended with status {process.returncode}")
        return Whole(self.folder, begun, self._rows())

    def _rows(self) -> int:
        return sum(file.stat().st_size for file in list(self.out.rglob("metrics.csv")) if file.exists())

    # Interruptions -----------------------------------------------------------------------------------------------

    def interrupt(self, whole: Whole) -> str:
        """Start or go on with the training, interrupt it at a random moment, and say when; nothing if it was over."""
        self.out.parent.mkdir(parents=True, exist_ok=True)
        before, process = self._rows(), self.launch(self.command())
        deadline = time.monotonic() + PATIENCE
        if self.chance.random() < 0.25:  # while it starts
            moment = self.chance.uniform(0, whole.begun)
            _wait(process, moment)
            when = f"{moment:.1f} s"
        else:  # while it trains: once it has logged this many bytes, and then in a moment
            rows = before + int(self.chance.uniform(0, 0.9) * max(0, whole.rows - before))
            while process.poll() is None and self._rows() in range(rows) and time.monotonic() < deadline:
                time.sleep(0.002)
            _wait(process, self.chance.uniform(0, 0.05))
            when = f"{rows / whole.rows:.0%}"
        how = signal.SIGKILL if self.case.how == "cut" else signal.Signals[self.case.how]
        early = process.poll() is not None
        process.send_signal(how)
        if how == signal.SIGINT and self.chance.random() < 0.3:  # an impatient user
            _wait(process, self.chance.uniform(0, 0.3))
            process.send_signal(how)
            when += " twice"
        try:
            status = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            raise TrialError(f"{self.case.how} did not end it") from None
        self._alone()
        if status == 0 and self.complete():
            return ""
        if early:
            raise TrialError(f"it ended by itself with status {status}")
        if status not in STATUS[how]:
            raise TrialError(f"{self.case.how} at {when}: it ended with status {status}")
        if self.case.how == "cut":
            self._cut()
        return when

    def complete(self) -> bool:
        last = f"{STEPS // 64:07d}.npz"
        found = [folder for folder in self.out.rglob("checkpoints") if (folder / last).exists()]
        return len(found) == (2 if self.case.phase == "many" else 1)

    def _alone(self) -> None:
        """Wait until no process of this trial is left, as should be soon."""
        deadline = time.monotonic() + 20
        while left := _marked(self.mark):
            if time.monotonic() > deadline:
                raise TrialError(f"processes outlive it: {left}")
            time.sleep(0.02)

    def _cut(self) -> None:
        """Replace the place by what a disk may hold after a power cut."""
        place, image = self.out.parent, self.folder / "image"
        saved = {folder.parent.relative_to(place): _newest(self.disk, folder) for folder in _checkpoints(place)}
        power.cut(place, self.disk, image, self.chance)
        for run, number in saved.items():
            here = [int(file.stem) for file in (image / run / "checkpoints").glob("[0-9]*.npz")]
            if number > max(here, default=-1) or (number >= 0 and not (image / run / "run.json").exists()):
                raise TrialError(f"{run} had saved checkpoint {number}, which a power cut takes away")
        place.rename(self.folder / f"cut{self.cuts}")
        image.rename(place)
        self.cuts += 1

    # The end -----------------------------------------------------------------------------------------------------

    def check(self, whole: Whole) -> None:
        """The same numbers as without an interruption, and nothing else left behind."""
        self._alone()
        mine, theirs = (_runs(trial) for trial in (self.out, whole.folder / "place" / "run"))
        if sorted(mine) != sorted(theirs):
            raise TrialError(f"the runs are {sorted(mine)}, not {sorted(theirs)}")
        for name, run in mine.items():
            if how := difference(run, theirs[name]):
                raise TrialError(f"{name}: {how}")
            rest = [str(path.relative_to(run)) for path in run.rglob("*") if path.name.startswith(".")]
            rest += [path.name for path in run.iterdir() if path.name in ("replaced", "error.txt")]
            if rest:
                raise TrialError(f"{name}: {', '.join(rest)} is left over")


def run(case: Case, folder: Path, whole: Whole, begun: Path, seed: int) -> str:
    """Interrupt, go on, compare; the moments of interruption. ``begun`` is a run that was stopped halfway."""
    chance, shared, moments = random.Random(seed), _shared(), list[str]()
    while not moments:  # again, if it ended before it could be interrupted
        shutil.rmtree(folder, ignore_errors=True)
        trial = Trial(case, folder, chance)
        if case.phase == "resume":
            shutil.copytree(begun, trial.out)
        for _ in range(chance.randint(1, 2 if case.phase == "many" else 3)):
            if when := trial.interrupt(whole):
                moments.append(when)
    trial.finish()
    trial.check(whole)
    if new := _shared() - shared:
        raise TrialError(f"left in /dev/shm: {', '.join(new)}")
    shutil.rmtree(folder)
    return ", ".join(moments)


def difference(run: Path, other: Path) -> str:
    """How the last checkpoint and the metrics of two runs differ, the wall column apart; nothing if they do not."""
    for one, two in zip(_rows_of(run), _rows_of(other), strict=False):
        if one != two:
            return f"row {one} instead of {two}"
    if len(_rows_of(run)) != len(_rows_of(other)):
        return f"{len(_rows_of(run))} rows instead of {len(_rows_of(other))}"
    last, expected = (max((path / "checkpoints").glob("*.npz")) for path in (run, other))
    if last.name != expected.name:
        return f"the last checkpoint is {last.name}, not {expected.name}"
    with np.load(last) as mine, np.load(expected) as theirs:
        if sorted(mine.files) != sorted(theirs.files):
            return "the checkpoints hold different arrays"
        for name in mine.files:
            a, b = mine[name], theirs[name]
            if a.dtype != b.dtype or a.shape != b.shape or a.tobytes() != b.tobytes():
                return f"{name} differs in the last checkpoint"
    return ""


def _rows_of(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open() as file:
        return [{name: value for name, value in row.items() if name != "wall"} for row in csv.DictReader(file)]


def _runs(out: Path) -> dict[str, Path]:
    return {str(file.parent.relative_to(out)): file.parent for file in out.rglob("run.json")}


def _checkpoints(place: Path) -> list[Path]:
    return [folder for folder in place.rglob("checkpoints") if folder.is_dir()]


def _newest(disk: Path, folder: Path) -> int:
    """The newest checkpoint that was saved to the last step, which flushes the folder; -1 if none was."""
    names = power.durable_names(disk, folder.stat().st_ino)
    return max((int(Path(name).stem) for name in names if name[0] != "."), default=-1)


def _wait(process: subprocess.Popen, seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return


def _marked(mark: str) -> list[str]:
    """Living processes of a trial, by the variable they inherit."""
    found, words = [], f"CAMPAIGN_MARK={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if words in (folder / "environ").read_bytes():
                found.append(f"{folder.name} ({(folder / 'cmdline').read_bytes().decode()[-80:]!r})")
        except OSError:  # it has ended, or is another user's
            continue
    return found


def _shared() -> set[str]:
    """Files in shared memory that are named as temporary ones are."""
    return {file.name for file in Path("/dev/shm").glob("tmp*")}
