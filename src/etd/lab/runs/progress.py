"""The progress display during training."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Column

from etd.core.terminal import Terminal
from etd.core.words import counted
from etd.training.experiment import Experiment

QUIET_EVERY = 10.0
"""Seconds between lines when the output is not a terminal."""
NOTEBOOK_EVERY = 1.0
"""Seconds between changes of the one line in a notebook."""


class Progress:
    """A live bar on a terminal, one line that changes in a notebook, an occasional line elsewhere, nothing when
    quiet."""

    def __init__(
        self,
        experiment: Experiment,
        quiet: bool = False,
        spent: float = 0.0,
        last_time: float | None = None,
        keep_time: Callable[[float], None] = lambda _: None,
        console: Console | None = None,
    ):
        self.experiment = experiment
        self.spent = spent
        self.last_time = last_time
        """seconds that compiling this experiment took here before, if known"""
        self.keep_time = keep_time
        """called with the seconds it takes this time"""
        self.console = console or Terminal(quiet=quiet, soft_wrap=True)
        self.live = self.console.is_terminal and not quiet
        self.line = _Line() if self.console.is_jupyter and not quiet else None
        self.bar = _bar(self.console, self.live)
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
        known = "" if self.last_time is None else f", {self.last_time:.0f} s last time"
        hint = f"compiling{known}" if known else "compiling (half a minute, once per experiment)"
        self.task = self.bar.add_task(hint if len(hint) <= _room(self.console) else "compiling", total=total)
        if not self.live:
            self.say(f"compiling {e.env.id}, {counted(e.seeds, 'seed')}, {counted(total, 'step')}{known} ...")

    def update(self, metrics: dict[str, np.ndarray]) -> None:
        """Show the metrics [S] of one iteration, averaged over seeds."""
        now, step = time.monotonic(), int(metrics["step"].max())
        if not self.first_step:
            self.first, self.first_step = now, step
            self.say(f"compiled, and one iteration done, in {now - self.began:.0f} s")
            self.keep_time(now - self.began)
        parts = self._parts(metrics, now, step)
        self.bar.update(self.task, completed=step, description=_fitting(parts, _room(self.console)))
        last = step >= self.experiment.iterations * self.experiment.steps_per_iteration
        if not self.live and (now - self.spoke > (NOTEBOOK_EVERY if self.line else QUIET_EVERY) or last):
            self.spoke = now
            (self.line.show if self.line else self.say)(f"{step:>11,} steps  {GAP.join(parts)}")

    def _parts(self, metrics: dict[str, np.ndarray], now: float, step: int) -> list[str]:
        """What is known, the most important first."""
        shown = [("return", "return", ".2f")]
        shown += [("score", "score", ".2f") if "score" in metrics else ("success", "success", ".0%")]
        shown += [("bonus_scale", "bonus scale", ".3f")]
        shown += [("model_accuracy", "model accuracy", ".0%"), ("states", "states", ",.0f")]
        parts = [f"{label} {_mean(metrics[name]):{how}}" for name, label, how in shown if name in metrics]
        done = (step - self.first_step) * self.experiment.seeds
        return [*parts[:2], *([f"{done / (now - self.first):,.0f} steps/s"] if done else []), *parts[2:]]


class _Line:
    """A line in a notebook's output that the next one replaces. Rich's own bar would need ipywidgets for that."""

    def __init__(self) -> None:
        self.handle: Any = None

    def show(self, text: str) -> None:
        from IPython.display import display  # there is one wherever rich finds a notebook

        if self.handle is None:
            self.handle = display({"text/plain": text}, raw=True, display_id=True)
        else:
            self.handle.update({"text/plain": text}, raw=True)


class Chunks:
    """The same for work in equal chunks: as a context manager, it yields a function to call after each chunk."""

    def __init__(self, console: Console, total: int):
        self.bar = _bar(console, console.is_terminal)
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


GAP = "  "
_BESIDE = len(" 100% 0:00:00 ")
"""Letters beside the bar and the text."""


def _bar(console: Console, live: bool) -> Bar:
    """A bar, the share done, the time left and a text, on one line."""
    text = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True))
    columns = [BarColumn(_bar_width(console)), TaskProgressColumn(), TimeRemainingColumn(), text]
    return Bar(*columns, console=console, disable=not live, transient=False)


def _bar_width(console: Console) -> int:
    """Narrower on a narrow terminal."""
    return min(24, console.width // 5)


def _room(console: Console) -> int:
    """Letters of text that fit beside the bar, even if the terminal has changed its width meanwhile."""
    return console.width - _bar_width(console) - _BESIDE


def _fitting(parts: list[str], room: int) -> str:
    """As many parts as there is room for, and at least the first."""
    while len(parts) > 1 and len(GAP.join(parts)) > room:
        parts = parts[:-1]
    return GAP.join(parts)


def _mean(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else float("nan")
