"""An environment's spec is a promise that buffers are sized by. Whoever breaks it gets a sentence, not wrong numbers.

The iteration measures, on the device and for next to nothing; whoever reads its metrics checks.
"""

from __future__ import annotations

import numpy as np

from etd.core.errors import UserError
from etd.core.types import EnvSpec

MEASURED = ("repeated_starts", "shortest_episode", "longest_episode")
"""Metrics of an iteration that are for this check alone."""


def check(spec: EnvSpec, metrics: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The metrics [S] of an iteration without MEASURED, unless they show that the environment broke its spec."""
    longest, repeated = metrics["longest_episode"].max(), metrics.get("repeated_starts", np.zeros(1)).sum()
    if longest > spec.max_steps:
        raise too_long(spec, int(longest))
    if repeated:
        raise too_short(spec, int(metrics["shortest_episode"].min()), int(repeated))
    return {name: column for name, column in metrics.items() if name not in MEASURED}


def too_long(spec: EnvSpec, length: int) -> UserError:
    """Memories hold max_steps + 1 entries."""
    return UserError(
        f"An episode of {spec.name} has gone on for {length:,} steps, but its spec says max_steps={spec.max_steps:,}. "
        "Let the environment truncate it by then, or set a larger max_steps and train anew."
    )


def too_short(spec: EnvSpec, length: int, repeated: int) -> UserError:
    """A rollout brings as many starts along as episodes of length ``shortest`` fit into it."""
    return UserError(
        f"An episode of {spec.name} took {length:,} step{'s' * (length != 1)}, but its spec says "
        f"shortest={spec.shortest:,}: more episodes ended than levels were ready, and {repeated:,} would have been "
        f"played twice. Set shortest={length} in its EnvSpec, then resume; the last checkpoint is sound, and nothing "
        "of this iteration was saved."
    )
