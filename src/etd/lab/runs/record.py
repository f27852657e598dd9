"""The record of a run, run.json, or of an exported agent, agent.json: its experiment, the versions and the device.
Whoever wrote it, everything is checked before it is used."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from etd.core import files
from etd.core.errors import UserError
from etd.core.limits import is_number
from etd.core.version import __version__
from etd.training.config import from_dict
from etd.training.experiment import Experiment
from etd.training.migrate import FORMAT, upgrade
from etd.training.validate import checked

EXPORT = "agent.json"
LARGEST = 1_000_000
"""Bytes; a record has a few thousand."""
DEEPEST = 50
"""Levels of nesting; a mixture has about ten."""
SAID = 300
"""Letters of an error that may quote the record."""


def read_record(file: Path) -> dict[str, Any]:
    """The record under today's names, or a UserError."""
    try:
        record = read_fields(file)
    except (OSError, ValueError) as error:
        raise broken(file, files.reason(error)) from error
    version = record.get("format")
    if type(version) is not int or version < 1:
        raise broken(file, f"its format should be a whole number from 1 to {FORMAT}, not {version!r}")
    if version > FORMAT:
        versions = record.get("versions")
        newer = versions.get("etd", "?") if isinstance(versions, dict) else "?"
        raise UserError(
            f"{file.parent} was written by a newer etd ({newer}); this is {__version__}. Upgrade with "
            "`pip install --upgrade etd`."
        )
    for name, (holds, what) in _PARTS.items():
        if name in record and not holds(record[name]):
            raise broken(file, f"its {name} should be {what}")
    return upgrade(record)


def read_fields(file: Path) -> dict[str, Any]:
    """What a JSON file holds; an OSError or a ValueError that says why if that is not a group of fields."""
    try:
        found = json.loads(files.read(file, LARGEST).decode())
        json.dumps(found, ensure_ascii=False).encode()  # half of a surrogate pair could not be printed
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if _is_deep(found):
        raise ValueError("it is nested too deeply")
    if not isinstance(found, dict):
        raise ValueError("it is not a group of fields")
    return found


def read_experiment(record: dict[str, Any], file: Path) -> Experiment:
    """The experiment of a record read from ``file``, with the values that training would accept."""
    data = record.get("experiment")
    if not isinstance(data, dict) or not data.keys() >= {"env", "bonus"}:
        raise broken(file, "it has no experiment with an environment and a bonus")
    try:
        return checked(from_dict(data))
    except UserError as error:
        raise broken(file, str(error).rstrip(".")) from error


def broken(file: Path, why: str) -> UserError:
    """What to say of a file that cannot be used."""
    why = why if len(why) <= SAID else f"{why[:SAID]} ..."
    exported = file.parent / EXPORT in (file, file.with_suffix(".json"))
    anew = "export the agent again" if exported else "start a new run under another --out"
    return UserError(f"{file} cannot be used: {why}. Restore it from a copy, or {anew}.")


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST):
        level = [inner for outer in level for inner in _inside(outer)]
    return bool(level)


def _inside(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []


def _are_words(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(inner, str) for inner in value.values())


def _are_groups(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_are_words, value.values()))


def _are_sentences(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(inner, str) for inner in value)


_PARTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "versions": (_are_words, "a group of strings"),
    "device": (_are_words, "a group of strings"),
    "sources": (_are_groups, "a group of groups of strings"),
    "unwritable": (_are_sentences, "a list of strings"),
    "until": (is_number, "a finite number"),
    "imports": (_are_sentences, "a list of strings"),
}
"""The other parts of a record."""
