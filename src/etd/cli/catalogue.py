"""``etd list`` and ``etd show``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import tyro

from etd.cli.options import Import, Set


def list_(what: tyro.conf.Positional[str] = "all") -> None:
    """Show on one screen what there is; on request, every environment, bonus, recurrent cell, preset or figure.

    For example:

        etd list
        etd list environments
        etd list bonuses

    Args:
        what: environments, bonuses, cells, presets, figures, or all for an overview.
    """
    from rich.padding import Padding

    from etd.core.errors import unknown
    from etd.core.terminal import Terminal

    sections: dict[str, Callable[[], Sequence[tuple[str, ...]]]] = {
        "environments": _environments,
        "bonuses": _bonuses,
        "cells": _cells,
        "presets": _presets,
        "figures": _figures,
    }
    if what != "all" and what not in sections:
        raise unknown("list of", what, sections, f"Ask for {', '.join(sections)} or all.")
    console = Terminal()
    if what != "all":
        console.print(_table(sections[what]()))
        return
    console.print("Environments", style="bold")
    console.print(_table(_families()))
    for name in ("bonuses", "cells"):
        console.print(name.capitalize(), style="bold")
        console.print(Padding(", ".join(row[0] for row in sections[name]()), (0, 2)))
    console.print(
        f"More: etd list {' | '.join(sections)}\n"
        "Try:  etd train --env MiniGrid-DoorKey-8x8-v0 --bonus etd\n"
        "Your own: etd train --env my_module:PointMaze --bonus my_module:Impact",
    )


def _table(rows: Sequence[tuple[str, ...]]) -> Any:
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 0, 0, 2))
    for row in rows:
        table.add_row(*row)
    return table


def _families() -> list[tuple[str, ...]]:
    """Of each family an example id, how many more there are, and where they run or what must be installed first."""
    from etd.envs import FAMILIES

    rows: list[tuple[str, ...]] = []
    for family in FAMILIES:
        more = f"{family.prefix}..." if family.prefix else f"{len(family.ids) - 1} more" if len(family.ids) > 1 else ""
        where = "in worker processes" if family.on_host else "on the device"
        note = _brackets(family.remedy()) or where
        rows.append((" and ".join(filter(None, [*family.ids[:1], more])), note))
    return rows


def _environments() -> list[tuple[str, str]]:
    """Each id with what must be installed; after a family's own ids, its prefix."""
    from etd.envs import FAMILIES

    rows = []
    for family in FAMILIES:
        needs = _brackets(family.remedy())
        rows += [(name, needs) for name in family.ids]
        if family.prefix:
            rows.append((f"{family.prefix}...", f"{family.more} {needs}"))
    return rows


def _bonuses() -> list[tuple[str, str]]:
    from etd.bonuses import BONUSES

    return [(name, _first_line(kind)) for name, kind in BONUSES.items()]


def _cells() -> list[tuple[str, str]]:
    from etd.nets.cells import CELLS

    return [(name, (kind.__doc__ or "").strip().splitlines()[0]) for name, kind in CELLS.items()]


def _presets() -> list[tuple[str, str]]:
    from etd.envs import remedy
    from etd.training.presets import PRESETS

    return [
        (name, f"{preset.env.id}, {preset.steps:,} steps {_brackets(remedy(preset.env.id))}")
        for name, preset in PRESETS.items()
    ]


def _figures() -> list[tuple[str, str]]:
    from etd.lab.paper.figures import FIGURES

    return [(name, title) for name, (title, _) in FIGURES.items()]


def _brackets(words: str) -> str:
    return f"({words})" if words else ""


def _first_line(kind: type) -> str:
    return (sys.modules[kind.__module__].__doc__ or "").strip().splitlines()[0]


def show(preset: tyro.conf.Positional[str], set_: Set = (), import_: Import = ()) -> None:
    """Print every field of a preset, with overrides applied.

    For example:

        etd show minigrid-etd
        etd show obstructedmaze-etd --set ppo.entropy_coef=5e-4 --set ppo.cell=lstm

    Args:
        preset: a name from `etd list presets`.
        set_: override fields, as in `etd train`.
        import_: your own modules to import first.
    """
    from etd.core import plugins
    from etd.training import presets
    from etd.training.config import override, to_dict
    from etd.training.validate import check

    plugins.trust(import_)
    experiment: Any = presets.find(preset)
    for assignment in set_:
        experiment = override(experiment, assignment)
    print(json.dumps(to_dict(check(experiment)), indent=2))
