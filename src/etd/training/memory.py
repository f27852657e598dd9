"""Will it fit? What is sure to need more memory than there is ends with a sentence before anything is allocated; once
it is, XLA ends the process itself."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from etd.core.errors import UserError
from etd.core.limits import SEEDS, is_whole
from etd.core.types import PyTree
from etd.envs import autoreset
from etd.envs.custom import Factory
from etd.training import backend
from etd.training.config import assign, walk
from etd.training.experiment import Experiment

HUGE = 1 << 24
"""A field beyond this may be too large even to trace."""


def refuse_training(experiment: Experiment) -> None:
    """A UserError if training needs more memory than there is: the fields to lower, and what would fit."""
    there = available()
    if there is None or (need := _training(experiment)) <= there:
        return
    path, value = _largest(experiment)

    def fits(shift: int) -> bool:
        return _training(assign(experiment, path, _rounded(value >> shift))) <= there

    shift = _first(fits, value.bit_length())
    advice = f"{path}={_rounded(value >> shift)} would fit" if shift else f"{path} alone is not enough"
    raise UserError(
        f"This training needs {readable(need)} of memory or more; there are {readable(there)}. Lower {path}, now "
        f"{value} ({advice}), or else seeds, num_envs, rollout_steps or the networks."
    )


def refuse_episodes(experiment: Experiment, episodes: int, film: bool = False) -> None:
    """A UserError if that many episodes at once, whole ones for a ``film``, need more memory than there is."""
    if not is_whole(episodes, 1, sys.maxsize):
        raise UserError(f"{episodes!r} episodes cannot be played. Ask for at least 1.")
    there = available()
    most = SEEDS - 1 if there is None else min(SEEDS - 1, int(there // _episode(experiment, film)))
    if episodes > most:
        raise UserError(f"{episodes} episodes at once do not fit in memory. Ask for at most {most}.")


def refuse_arrays(what: str, count: int, each: int, then: str) -> None:
    """A UserError if ``what``, ``count`` things of ``each`` bytes, needs more memory than there is."""
    there = available()
    if there is not None and count * each > there:
        raise UserError(f"{what} needs {readable(count * each)} of memory; there are {readable(there)}. {then}")


def available() -> int | None:
    """Bytes that training can have: the devices', or on a CPU what the system would give; None if unknown."""
    if jax.default_backend() != "cpu":
        limits = [int((device.memory_stats() or {}).get("bytes_limit", 0)) for device in jax.local_devices()]
        return sum(limits) if all(limits) else None
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free = sum(int(lines[name].split()[0]) << 10 for name in ("MemAvailable", "SwapFree"))
    except (OSError, KeyError, ValueError):
        return None
    return min([free, *_shares()])


def taken(experiment: Experiment) -> tuple[float, bool]:
    """Bytes that training, which has run, took at its peak, and True: the devices have counted them. Or else what it
    needs at least, and False."""
    peaks = [int((device.memory_stats() or {}).get("peak_bytes_in_use", 0)) for device in jax.local_devices()]
    return (sum(peaks), True) if any(peaks) else (_training(experiment), False)


def _shares() -> list[int]:
    """The limits of the container that this process is in, if any."""
    found = []
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            found.append(int(Path(file).read_text()))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return found


# What is needed at least ------------------------------------------------------------------------------------------


def _training(experiment: Experiment) -> float:
    """Bytes of the whole state, and of what PPO reads of the rollout: on a CPU the seeds take turns."""
    try:
        state = backend.shapes(experiment)
    except UserError:
        raise
    except (TypeError, ValueError, OverflowError, MemoryError):
        if _largest(experiment)[1] < HUGE:
            raise
        return math.inf
    spec, seeds = experiment.env.spec, 1 if jax.default_backend() == "cpu" else experiment.seeds
    row = spec.obs_size * np.dtype(spec.obs_dtype).itemsize + 4 * int(state.hidden.shape[-1])
    return size(state) + seeds * experiment.steps_per_iteration * row


def _episode(experiment: Experiment, film: bool) -> int:
    """Bytes of one episode: its environment and the start that follows; for a film every observation as well."""
    spec = experiment.env.spec
    image = spec.obs_size * np.dtype(spec.obs_dtype).itemsize
    if experiment.env.host() is not None:  # few at a time; what is kept is at least an action and a reward
        return 8
    env = experiment.env.make()
    start = size(jax.eval_shape(lambda: autoreset.begin(env, jax.random.key(0), 1)))
    return spec.max_steps * image if film else 2 * start


def size(shapes: PyTree) -> int:
    """Bytes of all arrays, in whole numbers: NumPy's would overflow."""
    return sum(math.prod(map(int, leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


# What would fit ---------------------------------------------------------------------------------------------------


def _largest(experiment: Experiment) -> tuple[str, int]:
    """Path and value of the whole number that exceeds its default by the largest factor."""
    found = {"num_envs": (experiment.num_envs / Experiment.num_envs, experiment.num_envs)}
    for where, part in walk(experiment, ""):
        if not is_dataclass(part) or isinstance(part, type | Factory):
            continue
        for f in fields(part):
            value: Any = getattr(part, f.name)
            if type(value) is type(f.default) is int and f.default > 0 and f.name not in _FREE:
                found[f"{where}.{f.name}".lstrip(".")] = (value / f.default, value)
    path = max(found, key=lambda one: found[one][0])
    return path, found[path][1]


_FREE = {"steps", "epochs", "minibatch"}
"""Fields that cost time, not memory."""


def _first(fits: Callable[[int], bool], most: int) -> int:
    """The least shift from 1 to ``most - 1`` that fits, or 0 if none does."""
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    return low if low < most else 0


def _rounded(value: int) -> int:
    """Even where it can be, which some widths must be."""
    return value - value % 2 if value > 2 else value


def readable(count: float) -> str:
    """A number of bytes in a unit that suits it."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return "more than 1024 PiB"
