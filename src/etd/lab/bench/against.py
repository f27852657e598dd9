"""Is training slower than it was? A kept result of `etd bench training`, read safely and compared with a new one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from etd.core import files
from etd.core.errors import UserError
from etd.lab.runs.record import read_fields
from etd.training import migrate
from etd.training.config import from_dict, to_dict
from etd.training.experiment import Experiment

NOTICED = 1.1
"""A row is called slower from this factor on; less may be chance."""
_ANY = ("steps", "seed")
"""Settings that do not matter for speed."""
_SHOWN = 5
"""So many differences are named."""


class Kept(NamedTuple):
    """A result that was kept."""

    file: Path
    device: str
    experiment: Experiment
    values: dict[str, float]
    """by row of the table"""


def read(file: Path) -> Kept:
    """The result in ``file``, of this version or an older one; a UserError if it is something else."""
    try:
        with files.told(file, "read"):
            found = read_fields(file)
        result = migrate.upgrade({"format": 1, **found})
        device, settings, values = result["device"], result["experiment"], rows(result)
        if not isinstance(settings, dict) or not settings.keys() >= {"env", "bonus"}:
            raise ValueError("it has no experiment with an environment and a bonus")
        experiment = from_dict(settings)
    except files.DiskError:
        raise
    except KeyError as error:
        raise _other(file, f"it has no {error.args[0]}") from error
    except (OSError, ValueError, TypeError, AttributeError, UserError) as error:
        raise _other(file, files.reason(error).rstrip(".")) from error
    if not isinstance(device, str):
        raise _other(file, "its device should be a string")
    if wrong := [name for name, value in values.items() if not _is_time(value)]:
        raise _other(file, f"{wrong[0]!r} should be a number, 0 or more")
    return Kept(file, device, experiment, values)


def _other(file: Path, why: str) -> UserError:
    why = why if len(why) <= 300 else f"{why[:300]} ..."
    return UserError(f"{file} is not a result of `etd bench training`: {why}. Name a file that it has written.")


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def rows(result: dict[str, Any]) -> dict[str, float]:
    """The numbers that are compared, by row of the table: seconds, except for the steps per second."""
    values = {"compile": result["compile_s"], "one iteration": result["iteration_s"]}
    values |= {"steps per second": result["steps_per_s"], **result["phases_s"]}
    return values | {name: one["iteration_s"] for name, one in result.get("variants", {}).items()}


def differences(kept: Kept, experiment: Experiment, device: str) -> list[str]:
    """What keeps two results from being compared, in words: another device or other settings."""
    found = [] if device == kept.device else [f"the device is {device}, not {kept.device}"]
    mine, theirs = dict(_leaves(to_dict(experiment))), dict(_leaves(to_dict(kept.experiment)))
    for path in (path for path in {**theirs, **mine} if path not in _ANY):
        if mine.get(path) != theirs.get(path):
            found.append(f"{path} is {mine.get(path)}, not {theirs.get(path)}")
    return found


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict | list):
        inside = value.items() if isinstance(value, dict) else enumerate(value)
        for name, inner in inside:
            yield from _leaves(inner, f"{path}.{name}".lstrip("."))
    else:
        yield path, value


def heading(kept: Kept, different: list[str]) -> str:
    """The sentence above a comparison: with what, and why it is not a fair one if it is not."""
    if not different:
        return f"Against {kept.file}, the same training on the same kind of device:"
    more = f"; and {len(different) - _SHOWN} more" if len(different) > _SHOWN else ""
    return f"Not comparable with {kept.file}: {'; '.join(different[:_SHOWN])}{more}."


def ratio(kept: Kept, row: str, value: float, words: Callable[[float], str]) -> tuple[str, bool]:
    """How a row's value compares with the kept one, and whether it is slower; empty if that result has no such row."""
    before = kept.values.get(row)
    if not before:
        return "", False
    times = value / before
    slower = times <= 1 / NOTICED if row == "steps per second" else times >= NOTICED
    return f"{times:.2f} x {words(before)}", slower
