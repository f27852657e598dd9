"""``etd bench training | seeds | env | bonus | host | parity``."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from etd.cli.options import Flag, Import, Number, OptionalPath, Set
from etd.core.words import say

if TYPE_CHECKING:
    from etd.training.experiment import Experiment


def bench() -> None:
    """Measure speed, or compare MiniGrid with Farama's: training, seeds, env, bonus, host or parity.

    For example:

        etd bench
        etd bench training --seeds 32 --set precision=tensorfloat32
        etd bench env --env MiniGrid-ObstructedMaze-Full-v1
    """


def training(
    run: tyro.conf.Positional[Path | None] = None,
    env: str = "MiniGrid-DoorKey-8x8-v0",
    bonus: str = "etd",
    seeds: int = 1,
    repeats: int = 3,
    variants: Flag = False,
    against: OptionalPath = None,
    out: Path = Path("bench-training.json"),
    set_: Set = (),
    import_: Import = (),
) -> None:
    """Steps per second of training, where the time goes, and how close that is to what the device can do.

    For example:

        etd bench training --seeds 32 --set precision=tensorfloat32
        etd bench training --variants
        etd bench training --against before.json
        etd bench training runs/DoorKey-8x8-v0-etd

    Args:
        run: a run's directory, instead of env and bonus.
        env: an id from `etd list environments`, or module:Class.
        bonus: a name from `etd list bonuses`, or module:Class.
        seeds: how many agents to train together.
        repeats: iterations to time; the median is reported.
        variants: also time deterministic training and every other precision; each is compiled anew.
        against: a JSON file that this command has written before, to compare with row by row.
        out: JSON file for the numbers.
        set_: override fields, as in `etd train`.
        import_: your own modules to import first.
    """
    from etd.core.errors import UserError
    from etd.lab.bench import against as before
    from etd.lab.bench import training

    experiment = replace(_experiment(run, env, bonus, import_), seeds=seeds)
    experiment = _overridden(experiment, set_)
    _check(out)
    if against is not None and out.resolve() == against.resolve():
        raise UserError(f"{out} would be overwritten by the new numbers. Choose another --out.")
    kept = None if against is None else before.read(against)
    others = training.variants_of(experiment) if variants else {}
    if variants and not others:
        print("A CPU computes in float32 and always repeats, so there is no variant to time.", flush=True)
    _write(training.training(experiment, repeats, others, kept), out)


def seeds(
    run: tyro.conf.Positional[Path | None] = None,
    env: str = "MiniGrid-DoorKey-8x8-v0",
    bonus: str = "etd",
    most: Number = None,
    repeats: int = 3,
    out: Path = Path("bench-seeds.json"),
    set_: Set = (),
    import_: Import = (),
) -> None:
    """Steps per second of training with 1, 2, 4 ... seeds together, and the memory it takes, with a plot.

    For example:

        etd bench seeds --most 32 --set precision=tensorfloat32

    Args:
        run: a run's directory, instead of env and bonus.
        env: an id from `etd list environments`, or module:Class.
        bonus: a name from `etd list bonuses`, or module:Class.
        most: the largest number of seeds; if omitted, 128, or 4 on a CPU, where seeds take turns.
        repeats: iterations to time; the median is reported.
        out: JSON file for the numbers; the plot is saved next to it.
        set_: override fields, as in `etd train`.
        import_: your own modules to import first.
    """
    from etd.lab.bench import seeds

    experiment = _overridden(_experiment(run, env, bonus, import_), set_)
    _check(out)
    _write(seeds.run(experiment, most, repeats, _check(out.with_suffix(".png"))), out)


def env(env: str = "MiniGrid-DoorKey-8x8-v0", out: Path = Path("bench-env.json")) -> None:
    """Steps per second of a device environment, from 1 to 65,536 at once, with a plot.

    For example:

        etd bench env --env MiniGrid-ObstructedMaze-Full-v1

    Args:
        env: an id from `etd list environments`, or module:Class.
        out: JSON file for the numbers; the plot is saved next to it.
    """
    from etd.lab.bench import speed

    _check(out)
    _write(speed.run(env, _check(out.with_suffix(".png"))), out)


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


def _experiment(run: Path | None, env: str, bonus: str, modules: tuple[str, ...]) -> Experiment:
    from etd.core import plugins
    from etd.lab.runs.store import Run
    from etd.training import presets

    plugins.trust(modules)
    return Run.open(run).require() if run else presets.choose(env, bonus)


def _overridden(experiment: Experiment, assignments: tuple[str, ...]) -> Experiment:
    from etd.training.config import override
    from etd.training.validate import check

    for assignment in assignments:
        experiment = override(experiment, assignment)
    return check(experiment)


def _check(out: Path) -> Path:
    """``out`` itself if it can be written, which is better known before the work."""
    from etd.lab.runs.store import refuse_run_file

    return refuse_run_file(out)


def _write(result: dict[str, Any], out: Path) -> None:
    from etd.core import files

    files.write(out, json.dumps(result, indent=2) + "\n")
    say(f"Written to {out}")


BENCHMARKS: dict[str, Any] = {
    "training": training,
    "seeds": seeds,
    "env": env,
    "bonus": bonus,
    "host": host,
    "parity": parity,
}
