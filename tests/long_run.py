"""``python -m tests.long_run --out FILE.csv``: watch a long training for what grows: memory, handles, step time.

Every iteration adds a row to FILE.csv. At the end, and by ``--draw FILE.csv`` anywhere else, a line is fitted to the
last third of each column; what it grows by must be next to nothing. ``--draw`` also writes FILE.png.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Watched(NamedTuple):
    """A column, and how much it may grow over the last third of the run."""

    title: str
    share: float = 0.0
    """of its mean"""
    most: float = 0.0
    """in its own unit"""


COLUMNS = {
    "rss": Watched("memory of the process [MiB]", share=0.01),
    "device": Watched("memory of the device in use [MiB]", share=0.01),
    "arrays": Watched("live arrays", most=0.5),
    "handles": Watched("open handles", most=0.5),
    "threads": Watched("threads", most=0.5),
    "shared": Watched("entries in /dev/shm", most=0.5),
    "step_time": Watched("time per iteration [ms]", share=0.05),
}


class Recorder:
    """A sink for metrics that looks at the process instead of at the metrics."""

    module = "numpy"  # all it needs
    file = Path()

    def __init__(self, run: object) -> None:
        self.stream = self.file.open("w", newline="", buffering=1)
        self.rows = csv.DictWriter(self.stream, ["iteration", "step", "seconds", *COLUMNS], lineterminator="\n")
        self.rows.writeheader()
        self.began = self.last = time.perf_counter()

    def log(self, rows: list[dict[str, float]]) -> None:
        import jax

        now = time.perf_counter()
        stats = jax.local_devices()[0].memory_stats() or {}
        row = {"iteration": rows[0]["iteration"], "step": rows[0]["step"], "seconds": round(now - self.began, 3)}
        row |= {"step_time": round(1000 * (now - self.last), 3), "rss": _status("VmRSS") / 1024}
        row |= {"threads": _status("Threads"), "handles": _count("/proc/self/fd"), "shared": _count("/dev/shm")}
        row |= {"device": stats.get("bytes_in_use", 0) / 2**20, "arrays": len(jax.live_arrays())}
        self.rows.writerow(row)
        self.last = now

    def close(self) -> None:
        self.stream.close()


def _status(name: str) -> int:
    """A number from the kernel's account of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    return 0


def _count(folder: str) -> int:
    return sum(1 for _ in Path(folder).iterdir())


def watch(options: argparse.Namespace) -> None:
    """Train, and record."""
    from etd.lab.runs import session, sinks

    Recorder.file = options.out
    sinks.SINKS["recorder"] = Recorder  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as folder:
        fields = dict(pair.split("=", 1) for pair in options.set)
        sizes = {"steps": options.steps, "seeds": options.seeds, "precision": options.precision}
        session.train(options.env, options.bonus, out=Path(folder) / "run", sinks=("recorder",), fields=fields, **sizes)


def read(file: Path) -> dict[str, np.ndarray]:
    """Every column [iterations], without the first iteration, which compiles."""
    with file.open() as stream:
        rows = list(csv.DictReader(stream))[1:]
    return {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}


def growth(table: dict[str, np.ndarray], name: str) -> float:
    """How much the line fitted to the last third of a column grows over it. Before, pools of threads fill up: the first
    checkpoints each start some.

    Of each tenth, time counts by its first decile, as other processes and checkpoints only add to it; the rest by its
    median.
    """
    begin = 2 * len(table[name]) // 3
    share = 10 if name == "step_time" else 50
    values = [np.percentile(tenth, share) for tenth in np.array_split(table[name][begin:], min(10, begin))]
    return float(np.polyfit(np.linspace(0, 1, len(values)), values, 1)[0])


def judge(table: dict[str, np.ndarray]) -> bool:
    """Print what each column does; whether all are flat."""
    flat = True
    print(f"{len(table['step']):,} iterations, {table['step'][-1]:,.0f} steps, {table['seconds'][-1]:,.0f} s")
    for name, watched in COLUMNS.items():
        mean, grown = float(table[name][2 * len(table[name]) // 3 :].mean()), growth(table, name)
        good = grown <= max(watched.most, watched.share * mean)
        flat &= good
        print(f"{watched.title:36} {mean:12,.1f}   {grown:+10.3f} over the last third   {'flat' if good else 'GROWS'}")
    print("flat" if flat else "NOT FLAT")
    return flat


def draw(table: dict[str, np.ndarray], file: Path) -> None:
    """One panel per column, over steps."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(len(COLUMNS), 1, figsize=(8, 2 * len(COLUMNS)), sharex=True, layout="constrained")
    for panel, (name, watched) in zip(panels, COLUMNS.items(), strict=True):
        panel.plot(table["step"] / 1e6, table[name], linewidth=0.8)
        panel.set_title(watched.title, loc="left", fontsize=9)
        top = np.percentile(table[name], 99.5) if name == "step_time" else table[name].max()
        panel.set_ylim(0, 1.15 * top or 1)
    panels[-1].set_xlabel("million steps")
    figure.savefig(file, dpi=120)
    print(f"Written: {file}")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.long_run", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("long-run.csv"), help="the rows (default long-run.csv)")
    parser.add_argument("--draw", type=Path, help="judge and draw these rows instead of training")
    parser.add_argument("--steps", type=int, default=20_000_000, help="per seed (default 20 million)")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--env", default="MiniGrid-DoorKey-8x8-v0")
    parser.add_argument("--bonus", default="etd")
    parser.add_argument("--precision", default="float32", choices=["float32", "tensorfloat32"])
    parser.add_argument("--set", action="append", default=[], help="a field, as in num_envs=4")
    options = parser.parse_args(words)
    if options.draw is None:
        watch(options)
    table = read(options.draw or options.out)
    if options.draw is not None:
        draw(table, options.draw.with_suffix(".png"))
    return int(not judge(table))


if __name__ == "__main__":
    sys.exit(main())
