"""Impossible values of every number in an experiment, from the limits that it declares."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from etd.bonuses import BONUSES
from etd.core.limits import Limits
from etd.training import presets


def impossible(value: Any, limits: Limits) -> Iterator[tuple[str, str]]:
    """(text, pattern) of values that are not in the limits."""
    whole = isinstance(value, int)
    yield "word", "a whole number, not 'word'" if whole else "a number, not 'word'"
    yield "1e999", "a whole number, not inf" if whole else " inf is out of range: it must be a finite number"
    if whole:
        yield "1.5", "a whole number, not 1.5"
    else:
        yield "-1e39", "out of range: it must be a finite number"
    for edge in (limits.above, limits.below):
        if edge is not None:
            yield f"{edge}", "is out of range: it must be"
    if limits.least is not None:
        yield f"{limits.least - 1}", "is out of range: it must be"
    if limits.most is not None:
        yield f"{limits.most + 1}", "is out of range: it must be"
    if limits.even:
        yield "3", "it must be even"


def numbers(part: Any, where: str) -> Iterator[tuple[str, Any, Limits]]:
    for f in fields(part):
        value = getattr(part, f.name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{where}{f.name}", value, f.metadata.get("limits", Limits())


def rows() -> Iterator[tuple[str, str, str]]:
    """(preset, assignment, pattern)"""
    experiment = presets.find("minigrid-etd")
    parts = [("", experiment), ("env.", experiment.env), ("ppo.", experiment.ppo), ("mix.", experiment.mix)]
    found = [("minigrid-etd", *one) for where, part in parts for one in numbers(part, where)]
    for name in [f"minigrid-{name}" for name in BONUSES if name != "mixture"]:
        found += [(name, *one) for one in numbers(presets.find(name).bonus, "bonus.")]
    once = {(path, limits): (preset, value) for preset, path, value, limits in reversed(found)}  # many are inherited
    for (path, limits), (preset, value) in once.items():
        for text, says in impossible(value, limits):
            yield preset, f"{path}={text}", f"{path.rpartition('.')[2]} (takes|=).*{says}"


ROWS = list(rows())
