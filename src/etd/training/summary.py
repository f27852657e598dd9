"""An experiment in a few words, and as the table that a notebook shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields, is_dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from etd.bonuses import BONUSES, Mixture
from etd.core.errors import UserError
from etd.envs import Task

if TYPE_CHECKING:
    from etd.training.experiment import Experiment

ALWAYS = ("env", "id", "bonus", "steps", "seeds")
"""Fields that are named even where they have their defaults."""


def words(part: Any) -> str:
    """The expression that makes an experiment or a part of one, without other fields that have their defaults."""
    if isinstance(part, tuple):
        return f"({', '.join(map(words, part))}{',' * (len(part) == 1)})"
    if not is_dataclass(part) or isinstance(part, type):
        return repr(part)
    given = [
        f"{f.name}={words(getattr(part, f.name))}"
        for f in fields(part)
        if f.init and f.repr and (f.name in ALWAYS or getattr(part, f.name) != _default(f))
    ]
    return f"{type(part).__qualname__}({', '.join(given)})"


def html(experiment: Experiment) -> str:
    """Every field: first those that differ from the preset for this environment and bonus, then the others, folded."""
    usual, now = dict(_leaves(_preset(experiment), "")), dict(_leaves(experiment, ""))
    own = {path: value for path, value in now.items() if path not in usual or usual[path] != value}
    rest = {path: value for path, value in now.items() if path not in own}
    head = f"<b>Experiment</b> {escape(experiment.env.id)}"
    if own:
        rows = [(path, repr(value), repr(usual[path]) if path in usual else "") for path, value in own.items()]
        head += _table(["field", "value", "preset"], rows)
    same = _table(["field", "value"], [(path, repr(value)) for path, value in rest.items()])
    return f"{head}<details><summary>{len(rest)} fields as in the preset</summary>{same}</details>"


def _preset(experiment: Experiment) -> Any:
    from etd.training import presets
    from etd.training.experiment import Experiment

    env, kind = experiment.env, type(experiment.bonus)
    ours = next((name for name, known in BONUSES.items() if kind is known and kind is not Mixture), None)
    try:
        normalise = bool(env.family and env.family.normalise)
        return presets.choose(Task(env.id, env.custom, normalise=normalise), ours or experiment.bonus)
    except UserError:  # there is no preset for this pair, or its module is missing
        return Experiment()


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """(path, value) of every field that is no part itself; a part's class counts as one."""
    if not is_dataclass(value) or isinstance(value, type):
        yield path, value
        return
    if path not in ("", "env"):
        yield path, type(value).__qualname__
    for f in fields(value):
        if f.init and f.repr:
            yield from _leaves(getattr(value, f.name), f"{path}.{f.name}".lstrip("."))


def _default(f: Any) -> Any:
    return f.default_factory() if f.default_factory is not MISSING else f.default


def _table(head: list[str], rows: Sequence[tuple[str, ...]]) -> str:
    top = "".join(f'<th style="text-align:left">{name}</th>' for name in head)
    body = "".join(
        f"<tr>{''.join(f'<td style=text-align:left>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
