"""The devices of each worker or, where the CPU trains, its cores. Left alone, all workers would use the same ones."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from etd.core.words import counted

_FORCED = "--xla_force_host_platform_device_count"


def environment(worker: int, workers: int) -> dict[str, str]:
    """The variables with which this one of the workers sees only its own devices."""
    here = jax.local_devices()  # a plan has looked at them already, to estimate times
    return visible([here[k] for k in share(worker, workers, len(here))], os.environ) if len(here) > 1 else {}


def cores(worker: int, workers: int) -> list[int]:
    """The cores of a worker; empty if it may use any, as where a GPU trains or there are more workers than cores. Two
    trainings on a core each make 1.6 times as many steps as one on both: small products and host environments gain
    little from a second core."""
    if jax.default_backend() != "cpu" or not hasattr(os, "sched_getaffinity"):
        return []
    here = sorted(os.sched_getaffinity(0))
    return [here[k] for k in share(worker, workers, len(here))] if workers <= len(here) else []


def share(worker: int, workers: int, count: int) -> list[int]:
    """The devices or cores of a worker, of ``count``: equal shares, or one each if there are too few.

    >>> share(1, 3, 8), share(9, 16, 8)
    ([1, 4, 7], [1])
    """
    return list(range(worker, count, workers)) if workers <= count else [worker % count]


def visible(devices: Sequence[Any], around: Mapping[str, str]) -> dict[str, str]:
    """The variables that make these devices the only ones, given those ``around``."""
    if devices[0].platform == "gpu":
        given = around.get("CUDA_VISIBLE_DEVICES", "")
        names = given.split(",") if given else None  # ours are numbered within these
        ids = [device.local_hardware_id for device in devices]
        return {"CUDA_VISIBLE_DEVICES": ",".join(names[k].strip() if names else str(k) for k in ids)}
    if devices[0].platform == "cpu":
        others = re.sub(rf"{_FORCED}=\d+", "", around.get("XLA_FLAGS", ""))
        return {"XLA_FLAGS": f"{others} {_FORCED}={len(devices)}".strip()}
    return {}  # a TPU serves one process only


def sentence(workers: int) -> str:
    """Who trains where; empty if there is nothing to share."""
    count, what = jax.local_device_count(), "device"
    where = f"{count} x {jax.local_devices()[0].device_kind}"
    if count == 1 and (own := cores(0, 1)):
        count, what = len(own), "core"
        where = counted(count, what)
    if workers == 1 or count == 1:
        return ""
    if what == "core" and workers > count:
        return f"{counted(workers, 'worker')} share {where}."
    sizes = sorted({len(share(k, workers, count)) for k in range(workers)})
    shared = ", which others use as well" if workers > count else " of its own"
    each = f"{' or '.join(map(str, sizes))} {what}{'s' * (sizes[-1] > 1)}{shared}"
    return f"{counted(workers, 'worker')} on {where}: each has {each}."
