"""Runs written by older versions, read under today's names. Format 1 is that of etd 0.1."""

from __future__ import annotations

from typing import Any

FORMAT = 2
"""Of the records written today."""

_FIELDS = {"ppo": {"trace": "gae_lambda", "value": "value_coef", "entropy": "entropy_coef"}}
_TOP = {"rollout": "rollout_steps"}
_ARRAYS = (
    ("learner/", "minds/"),
    ("/recurrent/", "/gru/"),
    ("/cell/", "/gru/"),
    ("/forward_out/", "/foretold/"),
    ("/forward_hidden/", "/ahead/"),
)
"""Parts of an array's name: today's, and that of format 1. "learner/" is replaced at the start of a name only."""


def upgrade(record: dict[str, Any]) -> dict[str, Any]:
    """A record of any earlier format as one of today's; what it does not understand it leaves for others to refuse."""
    if record.get("format") != 1 or not isinstance(record.get("experiment"), dict):
        return record
    experiment = _renamed(record["experiment"], _TOP)
    for part, names in _FIELDS.items():
        if isinstance(experiment.get(part), dict):
            experiment[part] = _renamed(experiment[part], names)
    return {**record, "format": FORMAT, "experiment": experiment}


def _renamed(fields: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in fields.items()}


def older_name(name: str) -> str:
    """What format 1 called this array of a checkpoint."""
    for new, old in _ARRAYS:
        if new == "learner/":
            name = old + name.removeprefix(new) if name.startswith(new) else name
        else:
            name = name.replace(new, old)
    return name
