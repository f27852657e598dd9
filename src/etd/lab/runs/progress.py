"""The progress display during training."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from etd.core.terminal import Terminal
from etd.core.words import counted
from etd.training.experiment import Experiment

QUIET_EVERY = 10.0
"""Seconds between lines when the output is not a terminal."""


class Progress:
    """A live bar on a terminal, an occasional line elsewhere, nothing when quiet."""

    def __init__(self, experiment: Experiment, quiet: bool = False, spent: float = 0.0):
        self.experiment = experiment
        self.spent = spent
        self.console = Terminal(quiet=quiet, soft_wrap=True)
        self.live = self.console.is_terminal and not quiet
        columns = [BarColumn(24), TaskProgressColumn(), TimeRemainingColumn(), TextColumn("{task.description}")]
        self.bar = Bar(*columns, console=self.console, disable=not self.live, transient=False)
        self.began = self.first = time.monotonic()
        self.first_step = 0
        self.spoke = 0.0

    def __enter__(self) -> Progress:
        self.bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.bar.stop()

    def elapsed(self) -> float:
        """Seconds of training so far, including compilation and the time before a resume."""
        return self.spent + time.monotonic() - self.began

    def say(self, text: str) -> None:
        """Print a sentence above the bar."""
        self.bar.console.print(text)

    def compiling(self) -> None:
        """Announce the compilation, during which nothing moves."""
        e = self.experiment
        total = e.iterations * e.steps_per_iteration
        self.task = self.bar.add_task("compiling (half a minute, once per experiment)", total=total)
        if not self.live:
            self.say(f"compiling {e.env.id}, {counted(e.seeds, 'seed')}, {counted(total, 'step')} ...")

    def update(self, metrics: dict[str, np.ndarray]) -> None:
        """Show the metrics [S] of one iteration, averaged over seeds."""
        now, step = time.monotonic(), int(metrics["step"].max())
        if not self.first_step:
            self.first, self.first_step = now, step
            self.say(f"compiled in {now - self.began:.0f} s")
        text = self._text(metrics, now, step)
        self.bar.update(self.task, completed=step, description=text)
        last = step >= self.experiment.iterations * self.experiment.steps_per_iteration
        if not self.live and (now - self.spoke > QUIET_EVERY or last):
            self.spoke = now
            self.say(f"{step:>11,} steps  {text}")

    def _text(self, metrics: dict[str, np.ndarray], now: float, step: int) -> str:
        done = (step - self.first_step) * self.experiment.seeds
        rate = f"{done / (now - self.first):,.0f} steps/s  " if done else ""
        shown = [("return", "return", ".2f")]
        shown += [("score", "score", ".2f") if "score" in metrics else ("success", "success", ".0%")]
        shown += [("bonus_scale", "bonus scale", ".3f")]
        shown += [("model_accuracy", "model accuracy", ".0%"), ("states", "states", ",.0f")]
        parts = [f"{label} {_mean(metrics[name]):{how}}" for name, label, how in shown if name in metrics]
        return rate + "  ".join(parts)


class Chunks:
    """The same for work in equal chunks: as a context manager, it yields a function to call after each chunk."""

    def __init__(self, console: Console, total: int):
        columns = [BarColumn(24), TaskProgressColumn(), TimeRemainingColumn(), TextColumn("{task.description}")]
        self.bar = Bar(*columns, console=console, disable=not console.is_terminal)
        self.console, self.total, self.done, self.spoke = console, total, 0, time.monotonic()
        self.task = self.bar.add_task("compiling", total=total)

    def __enter__(self) -> Callable[[str], None]:
        self.bar.start()
        return self.tell

    def __exit__(self, *_: Any) -> None:
        self.bar.stop()

    def tell(self, name: str) -> None:
        """Count one more chunk as done and show ``name``."""
        self.done += 1
        self.bar.update(self.task, completed=self.done, description=name)
        if not self.console.is_terminal and time.monotonic() - self.spoke > QUIET_EVERY:
            self.spoke = time.monotonic()
            self.console.print(f"{self.done / self.total:4.0%}  {name}")


def _mean(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else float("nan")
