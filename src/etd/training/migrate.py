"""Read runs written by older versions under today's names. Format 1 is etd 0.1's."""

from __future__ import annotations

from typing import Any

FORMAT = 2
"""The format of records written today."""

_FIELDS = {"ppo": {"trace": "gae_lambda", "value": "value_coef", "entropy": "entropy_coef"}}
_TOP = {"rollout": "rollout_steps"}
_ARRAYS = (
    ("learner/", "minds/"),
    ("/recurrent/", "/gru/"),
    ("/cell/", "/gru/"),
    ("/forward_out/", "/foretold/"),
    ("/forward_hidden/", "/ahead/"),
)
"""Parts of array names: today's, then format 1's. "learner/" is replaced only at the start of a name."""


def upgrade(record: dict[str, Any]) -> dict[str, Any]:
    """Convert a record of any earlier format to today's; what it does not recognise is left for later checks."""
    if record.get("format") != 1 or not isinstance(record.get("experiment"), dict):
        return record
    experiment = _renamed(record["experiment"], _TOP)
    for part, names in _FIELDS.items():
        if isinstance(experiment.get(part), dict):
            experiment[part] = _renamed(experiment[part], names)
    experiment["bonus"] = _classes(experiment.get("bonus"))
    return {**record, "format": FORMAT, "experiment": experiment}


def _classes(value: Any) -> Any:
    """Format 1 stored the class of a bonus, and of the parts of a mixture, as "name"."""
    if isinstance(value, list):
        return [_classes(part) for part in value]
    if not isinstance(value, dict):
        return value
    return {"class" if key == "name" else key: _classes(inner) for key, inner in value.items()}


def _renamed(fields: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in fields.items()}


def older_name(name: str) -> str:
    """The name that format 1 used for this checkpoint array."""
    for new, old in _ARRAYS:
        if new == "learner/":
            name = old + name.removeprefix(new) if name.startswith(new) else name
        else:
            name = name.replace(new, old)
    return name
