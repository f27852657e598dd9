"""Outputs for metrics besides the run's CSV: TensorBoard and Weights & Biases, if requested and installed."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol
from uuid import uuid4

from etd.core import files
from etd.core.errors import UserError, unknown
from etd.lab.runs.store import Run
from etd.training.config import to_dict


class Sink(Protocol):
    """Receives the rows of one iteration, one per seed."""

    def log(self, rows: list[dict[str, float]]) -> None: ...

    def close(self) -> None: ...


def extra(module: str, name: str) -> Any:
    """Import an optional package, or raise a UserError naming the extra that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"This needs {module}, which is not installed: pip install 'etd[{name}]'") from error


class TensorBoard:
    """One event file per seed, and another after each resume, under RUN/tensorboard."""

    module = "tensorboardX"

    def __init__(self, run: Run):
        writer = extra(self.module, "tensorboard").SummaryWriter
        unique = f".{time.time_ns()}"  # by default files are named by the second, and may collide
        folder = run.path / "tensorboard"
        self.writers = {seed: writer(str(folder / f"seed{seed}"), filename_suffix=unique) for seed in run.seeds}

    def log(self, rows: list[dict[str, float]]) -> None:
        for row in rows:
            for name, value in row.items():
                if name not in ("seed", "step"):
                    self.writers[int(row["seed"])].add_scalar(name, value, int(row["step"]))

    def close(self) -> None:
        for writer in self.writers.values():
            writer.close()


class WandB:
    """One W&B run, continued when ours is resumed; the columns of each seed carry its number."""

    module = "wandb"

    def __init__(self, run: Run):
        wandb, identity = extra(self.module, "wandb"), run.path / "wandb" / "id"
        if not (identity.exists() and run.metrics_file.exists()):  # a run started over gets a new id
            files.write(identity, uuid4().hex)
        self.run = wandb.init(
            project="etd",
            name=run.path.resolve().name,
            config=to_dict(run.experiment),
            dir=run.path,
            id=files.read(identity, 100).decode(),
            resume="allow",
        )

    def log(self, rows: list[dict[str, float]]) -> None:
        columns = {f"seed{int(row['seed'])}/{name}": value for row in rows for name, value in row.items()}
        self.run.log(columns, step=int(rows[0]["step"]))

    def close(self) -> None:
        self.run.finish()


SINKS: dict[str, type[TensorBoard] | type[WandB]] = {"tensorboard": TensorBoard, "wandb": WandB}


def check_sinks(names: tuple[str, ...]) -> None:
    """Raise a UserError for a sink that does not exist or lacks its package, before anything is written."""
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise UserError(f"sinks is {names!r}; pass a tuple of names, such as ('tensorboard',).")
    for name in names:
        if not isinstance(name, str) or name not in SINKS:
            raise unknown("sink", str(name), SINKS, f"Metrics can go to {', '.join(SINKS)}.")
        extra(SINKS[name].module, name)


@contextmanager
def open_sinks(names: tuple[str, ...], run: Run) -> Iterator[list[Sink]]:
    """Open the named sinks, close them at the end."""
    check_sinks(names)
    sinks: list[Sink] = [SINKS[name](run) for name in names]
    try:
        yield sinks
    finally:
        for sink in sinks:
            sink.close()
