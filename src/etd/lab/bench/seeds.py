"""How fast is training with more and more seeds together?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from etd.core.errors import UserError
from etd.core.terminal import Terminal
from etd.lab.bench import sweep, timing
from etd.lab.bench.sweep import Speed
from etd.training.config import bonus_name, to_dict
from etd.training.experiment import Experiment

MOST = 128
MOST_ON_CPU = 4
"""The seeds take turns there."""


def run(experiment: Experiment, most: int | None, repeats: int, picture: Path) -> dict[str, Any]:
    """Time whole iterations with 1, 2, 4 ... ``most`` seeds, as far as they fit in memory; prints results as they come
    and draws them."""
    timing.check_repeats(repeats)
    if most is None:
        most = MOST_ON_CPU if jax.default_backend() == "cpu" else MOST
    if most < 1:
        raise UserError(f"{most} seeds cannot be trained. Ask for at least 1.")
    console = Terminal(soft_wrap=True)
    name, device = bonus_name(experiment.bonus), jax.devices()[0].device_kind
    title = f"{experiment.env.id}, {name}, {experiment.precision}, {device}"
    console.print(title)
    found: list[Speed] = []
    counted = False
    for seeds in _doubled(most):
        try:
            with console.status(f"compiling and timing {seeds}"):
                whole = timing.whole(replace(experiment, seeds=seeds), repeats)[1]
        except (UserError, jax.errors.JaxRuntimeError) as error:
            refused = isinstance(error, UserError)
            if not found or not (refused or "RESOURCE_EXHAUSTED" in str(error)):
                raise
            why = str(error) if refused else "The device's memory is full."
            console.print(f"{seeds} seeds and more are left out: {why}")
            break
        found.append(Speed(name, seeds, whole.steps_per_s, whole.compile_s, whole.memory_bytes))
        counted = whole.memory_counted
        console.print(sweep.line(found[-1], found[-2] if len(found) > 1 else None))
    if not counted:
        console.print("Memory is an estimate of what is needed at least: this device does not count it.")
    console.print(f"Plot: {sweep.draw(found, 'seeds', title, picture)}")
    return {
        "experiment": to_dict(experiment),
        "bonus": name,
        "device": device,
        "memory_counted": counted,
        "speeds": [speed._asdict() for speed in found],
        "slow_bands": sweep.slow_bands(found),
    }


def _doubled(most: int) -> Iterator[int]:
    """1, 2, 4 ... up to ``most``."""
    seeds = 1
    while seeds <= most:
        yield seeds
        seeds *= 2
