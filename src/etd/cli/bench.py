"""``etd bench training | env | bonus | host | parity``."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import tyro

from etd.cli.options import Import, Set
from etd.core.terminal import Terminal
from etd.core.words import say


def bench() -> None:
    """Measure speed, or compare MiniGrid with Farama's: etd bench training | env | bonus | host | parity."""


def training(
    run: tyro.conf.Positional[Path | None] = None,
    env: str = "MiniGrid-DoorKey-8x8-v0",
    bonus: str = "etd",
    seeds: int = 1,
    repeats: int = 3,
    out: Path = Path("bench-training.json"),
    set_: Set = (),
    import_: Import = (),
) -> None:
    """Compile time, and steps per second with a breakdown.

    For example:

        etd bench training --seeds 32 --set precision=tensorfloat32
        etd bench training runs/DoorKey-8x8-v0-etd

    Args:
        run: a run's directory, instead of env and bonus.
        env: an id from `etd list environments`, or module:Class.
        bonus: a name from `etd list bonuses`, or module:Class.
        seeds: how many agents to train together.
        repeats: iterations to time; the median is reported.
        out: JSON file for the numbers.
        set_: override fields, as in `etd train`.
        import_: your own modules to import first.
    """
    from etd.core import plugins
    from etd.lab.bench import training
    from etd.lab.runs.config import override
    from etd.lab.runs.store import Run
    from etd.lab.runs.validate import check
    from etd.training import presets

    plugins.trust(import_)
    experiment = replace(Run.open(run).require() if run else presets.choose(env, bonus), seeds=seeds)
    for assignment in set_:
        experiment = override(experiment, assignment)
    _check(out)
    console = Terminal()
    with console.status("compiling and timing; a few minutes on a CPU"):
        result = training.training(check(experiment), repeats)
    console.print(training.table(result))
    _write(result, out)


def env(env: str = "MiniGrid-DoorKey-8x8-v0", out: Path = Path("bench-env.json")) -> None:
    """Steps per second of a device environment at many batch sizes, with a plot.

    For example:

        etd bench env --env MiniGrid-ObstructedMaze-Full-v1

    Args:
        env: an id from `etd list environments`, or module:Class.
        out: JSON file for the numbers; the plot is saved next to it.
    """
    from etd.lab.bench import training

    _check(out)
    _write(training.environment(env, _check(out.with_suffix(".png"))), out)


def bonus(
    env: str = "MiniGrid-DoorKey-8x8-v0",
    seeds: int = 1,
    repeats: int = 3,
    out: Path = Path("bench-bonus.json"),
) -> None:
    """The cost of every bonus compared with plain PPO.

    For example:

        etd bench bonus --env MiniGrid-ObstructedMaze-Full-v1

    Args:
        env: an id from `etd list environments`, or module:Class.
        seeds: how many agents to train together.
        repeats: iterations to time; the median is reported.
        out: JSON file for the numbers.
    """
    from etd.bonuses import BONUSES
    from etd.lab.bench import training

    _check(out)
    _write(training.bonuses(env, [name for name in BONUSES if name != "mixture"], seeds, repeats), out)


def host(
    env: str | None = None,
    bonus: str = "etd",
    repeats: int = 3,
    out: Path = Path("bench-host.json"),
    set_: Set = (),
    import_: Import = (),
) -> None:
    """Steps per second of host environments: one alone, in a pool, and in training.

    For example:

        etd bench host --env Crafter-v0 --bonus none

    Args:
        env: an id from `etd list environments`, or module:Class; if omitted, one of every installed family.
        bonus: a name from `etd list bonuses`, or module:Class.
        repeats: iterations to time; the average is reported.
        out: JSON file for the numbers.
        set_: override fields, as in `etd train`.
        import_: your own modules to import first.
    """
    from etd.core import plugins
    from etd.lab.bench import host

    plugins.trust(import_)
    _check(out)
    _write(host.run(host.installed() if env is None else [env], bonus, repeats, set_), out)


def parity(steps: int = 1_000_000, out: Path = Path("bench-parity.json")) -> None:
    """Compare MiniGrid with Farama's, step by step over all levels; exit status 1 if they differ.

    For example:

        etd bench parity --steps 100_000

    Args:
        steps: how many steps to compare.
        out: JSON file for the numbers.
    """
    from etd.lab.bench import training

    _check(out)
    result = training.parity(steps)
    _write(result, out)
    if result["mismatches"]:
        sys.exit(1)


def _check(out: Path) -> Path:
    """``out`` itself if it can be written, which is better known before the work."""
    from etd.lab.runs.store import refuse_run_file

    return refuse_run_file(out)


def _write(result: dict[str, Any], out: Path) -> None:
    from etd.core import files

    files.write(out, json.dumps(result, indent=2) + "\n")
    say(f"Written to {out}")


BENCHMARKS: dict[str, Any] = {"training": training, "env": env, "bonus": bonus, "host": host, "parity": parity}
