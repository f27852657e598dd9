"""Buffers are sized by an environment's spec, so a violation must raise an error instead of giving wrong numbers.

Each iteration takes the measurements on the device, at almost no cost; the check happens when its metrics are read.
"""

from __future__ import annotations

import numpy as np

from etd.core.errors import UserError
from etd.core.types import EnvSpec
from etd.core.words import counted

MEASURED = ("repeated_starts", "shortest_episode", "longest_episode")
"""Metrics of an iteration used only by this check."""


def check(spec: EnvSpec, metrics: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The metrics [S] of an iteration without MEASURED; a UserError if the environment violated its spec."""
    longest, repeated = metrics["longest_episode"].max(), metrics.get("repeated_starts", np.zeros(1)).sum()
    if longest > spec.max_steps:
        raise too_long(spec, int(longest))
    if repeated:
        raise too_short(spec, int(metrics["shortest_episode"].min()), int(repeated))
    return {name: column for name, column in metrics.items() if name not in MEASURED}


def too_long(spec: EnvSpec, length: int) -> UserError:
    """Memories hold max_steps + 1 entries."""
    return UserError(
        f"An episode of {spec.name} has reached {counted(length, 'step')}, but its spec says "
        f"max_steps={spec.max_steps:,}. Make the environment truncate it by then, or set a larger max_steps "
        "and retrain from scratch."
    )


def too_short(spec: EnvSpec, length: int, repeated: int) -> UserError:
    """A rollout's pool has as many starts as episodes of length ``shortest`` fit into it."""
    return UserError(
        f"An episode of {spec.name} took {counted(length, 'step')}, but its spec says "
        f"shortest={spec.shortest:,}: more episodes ended than levels were generated, so {repeated:,} would have been "
        f"played twice. Set shortest={length} in its EnvSpec, then resume; the last checkpoint is valid, and this "
        "iteration was not saved."
    )
