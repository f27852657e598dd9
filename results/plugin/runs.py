"""``python results/plugin/runs.py --at-once 12``: trains whatever is missing in this folder; LEVEL/METHOD/SEED.csv.

    pip install -e '.[sb3,minigrid]' torch               # and for rlexplore-*: pip install rllte-core==1.0.1
    python results/plugin/runs.py --only 'DoorKey-8x8/ppo*' --at-once 2

On a GPU start ``nvidia-cuda-mps-control -d`` first. A training that was stopped begins anew.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parents[1] / "examples"
STEPS = {"DoorKey-8x8": 300_000, "DoorKey-16x16": 1_000_000}
SB3, ONE_FILE, RLEXPLORE = EXAMPLES / "sb3_etd.py", EXAMPLES / "ppo_etd.py", HERE / "rlexplore.py"
METHODS: dict[str, tuple[Path, list[str]]] = {
    "ppo-etd": (SB3, ["--bonus", "etd"]),
    "ppo-etd-4": (SB3, ["--bonus", "etd", "--epochs", "4"]),
    "ppo-etd-1": (SB3, ["--bonus", "etd", "--epochs", "1"]),
    "ppo": (SB3, ["--bonus", "none"]),
    "recurrent-ppo-etd": (SB3, ["--recurrent", "--bonus", "etd"]),
    "recurrent-ppo": (SB3, ["--recurrent", "--bonus", "none"]),
    "one-file-etd": (ONE_FILE, ["--bonus", "etd", "--device", "cpu"]),
    "one-file": (ONE_FILE, ["--bonus", "none", "--device", "cpu"]),
    "rlexplore-1": (RLEXPLORE, ["--beta", "1"]),
    "rlexplore-0.01": (RLEXPLORE, ["--beta", "0.01"]),
}
"""Script and options by name; ``-4`` and ``-1`` are with 4 passes of the model and with 1 instead of 8."""
LARGE = ("ppo-etd-4", "ppo")
"""what is trained on DoorKey-16x16"""
UNTIL = "0.9"
"""the mean return at which SB3's trainings end"""
SEEDS = range(5)


class Job(NamedTuple):
    """One training."""

    level: str
    method: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.level}/{self.method}/{self.seed}"

    @property
    def file(self) -> Path:
        return HERE / f"{self.name}.csv"

    def command(self, out: Path) -> list[str]:
        script, options = METHODS[self.method]
        words = ["--env", f"MiniGrid-{self.level}-v0", "--seed", str(self.seed), *options]
        if script == ONE_FILE:  # it prints its curve
            return [str(script), *words, "--total-steps", str(STEPS[self.level])]
        ends = ["--until", UNTIL] if script == SB3 else []
        return [str(script), *words, "--steps", str(STEPS[self.level]), *ends, "--out", str(out)]


def jobs() -> Iterator[Job]:
    for level in STEPS:
        for method in METHODS if level == "DoorKey-8x8" else LARGE:
            yield from (Job(level, method, seed) for seed in SEEDS)


class Training:
    """A job that runs in a process of its own, in a folder of its own until it is done."""

    def __init__(self, job: Job) -> None:
        self.job, self.began, self.folder = job, time.time(), tempfile.TemporaryDirectory()
        self.out, self.printed = Path(self.folder.name, "curve.csv"), Path(self.folder.name, "printed.txt")
        path = os.pathsep.join([str(EXAMPLES), os.environ.get("PYTHONPATH", "")])
        env = {"OMP_NUM_THREADS": "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ, "PYTHONPATH": path}
        with self.printed.open("w") as stream:
            words = [sys.executable, "-u", *job.command(self.out)]
            self.process = subprocess.Popen(words, env=env, stdout=stream, stderr=subprocess.STDOUT)

    def finish(self) -> str:
        """Keep the curve, and say how it went."""
        printed = self.printed.read_text()
        if self.process.returncode:
            return f"{self.job.name}: failed\n{printed[-2000:]}"
        curve = self.out.read_text() if self.out.exists() else table(printed)
        self.job.file.parent.mkdir(parents=True, exist_ok=True)
        self.job.file.write_text(curve.replace("\r\n", "\n"))
        return f"{self.job.name}: return {curve.split()[-1].split(',')[1]} after {time.time() - self.began:.0f} s"


def table(printed: str) -> str:
    """The curve that ``examples/ppo_etd.py`` prints, as CSV; without a return until an episode has ended."""
    rows = re.findall(r"^ *([\d,]+) steps +return +(\S+)", printed, re.MULTILINE)
    return "step,return\n" + "".join(f"{step.replace(',', '')},{value}\n" for step, value in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", type=int, default=1, help="trainings side by side, one core each")
    parser.add_argument("--only", default="*", help="such as 'DoorKey-16x16/*'")
    given = parser.parse_args()
    waiting = [job for job in jobs() if fnmatch(job.name, f"{given.only}*") and not job.file.exists()]
    print(f"{len(waiting)} trainings to do", flush=True)
    running: list[Training] = []
    failed = 0
    while waiting or running:
        while waiting and len(running) < given.at_once:
            running.append(Training(waiting.pop(0)))
        time.sleep(1)
        for training in [one for one in running if one.process.poll() is not None]:
            running.remove(training)
            print(training.finish(), flush=True)
            failed += bool(training.process.returncode)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
