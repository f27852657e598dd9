"""Write the generated parts of these pages: python docs/bonuses/make.py

They stand between ``<!-- make NAME -->`` and ``<!-- made -->``: the fields of a bonus with their docstrings, its
results from the metrics kept under results/, its picture with what was done to draw it, and the index's tables.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pictures

from etd.bonuses import BONUSES, Bonus, LearnedBonus, Mixture
from etd.bonuses.representations import RecurrentBonus
from etd.lab.paper.claims import final
from etd.lab.paper.figures import TASKS
from etd.lab.report.curves import by_seed
from etd.lab.runs.store import Run
from etd.nets.cells import CELLS

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "results"
PLACES = ("bonuses", "minigrid", "representation")
"""Where runs are looked for, in this order."""
LEVELS = {
    "DoorKey-8x8": "8x8",
    "DoorKey-16x16": "16x16",
    "MultiRoom-N6": "N6",
    "KeyCorridorS6R3": "S6R3",
    "ObstructedMaze-2Dlh": "2Dlh",
    "ObstructedMaze-2Dlhb": "2Dlhb",
    "ObstructedMaze-1Q": "1Q",
    "ObstructedMaze-2Q": "2Q",
    "ObstructedMaze-Full": "Full",
}
"""And how they are called where there is little room."""
COLUMNS = 3
"""Pictures in a row of the index."""
SHARED = (LearnedBonus, RecurrentBonus)
"""Classes whose fields the index explains once."""


# Fields ----------------------------------------------------------------------------------------------------------


def sayings(kind: type) -> dict[str, str]:
    """What stands below each field that the class declares itself."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for node, after in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and after.value.value
            found[node.target.id] = " ".join(str(said).replace("``", "`").split()) if said else ""
    return found


def declared(kind: type, shared: bool) -> list[tuple[type, Field[Any], str]]:
    """The class's fields, either those of SHARED or the others, with the class that declares them last."""
    rows = []
    for one in fields(kind):
        home = next(base for base in kind.__mro__ if one.name in inspect.get_annotations(base))
        words = next((said for base in kind.__mro__ if (said := _said(base).get(one.name))), "")
        if (home in SHARED) == shared:
            rows.append((home, one, words))
    return rows


@cache
def _said(kind: type) -> dict[str, str]:
    return sayings(kind) if issubclass(kind, Bonus) else {}


def table_of_fields(kind: type, shared: bool = False) -> list[str]:
    rows = declared(kind, shared)
    if not rows:
        return ["None of its own."]
    lines = ["| field | default | meaning |", "|---|---|---|"]
    for home, one, words in rows:
        values = _values(home, one)
        lines.append(f"| `{one.name}` | {_default(one)} | {words}{f' ({values})' if values else ''} |")
    return lines


def _default(one: Field[Any]) -> str:
    value = one.default if one.default is not MISSING else one.default_factory()  # type: ignore[misc]
    if isinstance(value, bool | int | float | str):
        return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"
    name = next((name for name, kind in CELLS.items() if type(value) is kind), "")
    return f"`{name}`" if name else ""


def _values(home: type, one: Field[Any]) -> str:
    hint = get_type_hints(home)[one.name]
    if get_origin(hint) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(hint))
    if one.name == "cell":
        return ", ".join(f"`{name}`" for name in CELLS)
    return str(one.metadata.get("limits", ""))


# Results ---------------------------------------------------------------------------------------------------------


@cache
def kept(level: str, name: str) -> Run | None:
    """The run whose results are kept."""
    found = [RESULTS / place / level / name for place in PLACES]
    return next((Run.open(path) for path in found if (path / "run.json").exists()), None)


@cache
def result(level: str, name: str) -> str:
    """The interquartile mean of the final returns of five seeds."""
    run = kept(level, name)
    return "" if run is None else f"{final(run):.2f}"


def table_of_results(name: str) -> list[str]:
    levels = [level for level in LEVELS if kept(level, name)]
    if not levels:
        return ["None are kept."]
    others = [other for other in ("etd", "none") if other != name]
    heads = {"etd": "ETD", "none": "no bonus"}
    head = "| level | steps, M | final return | " + " | ".join(heads[other] for other in others) + " |"
    lines = [head, "|---|---|---|" + "---|" * len(others)]
    for level in levels:
        run = kept(level, name)
        assert run is not None
        steps, whole = by_seed(run, "return").steps[-1] / 1e6, TASKS[level][1] / 1e6
        length = f"{whole:g}" if steps >= whole else f"{steps:.2f} of {whole:g}"
        cells = [level, length, f"**{result(level, name)}**", *(result(level, other) for other in others)]
        lines.append("| " + " | ".join(cells) + " |")
    homes = {run.path.parents[1].name for level in levels if (run := kept(level, name))}
    links = " and ".join(f"[{place}](../../results/{place}/README.md)" for place in PLACES if place in homes)
    return [*lines, "", *_explained("".join(lines), len(levels), links)]


def _explained(table: str, count: int, links: str) -> list[str]:
    words = (
        "Interquartile means over five seeds of the return at the end of training, with the paper's presets, from the "
        f"metrics kept in {links}."
    )
    if " of " in table:
        words += " A run that was stopped early says where; those in the last columns are whole."
    if count < len(LEVELS):
        words += " Levels that are missing here have not been run."
    return _lines(words)


def _lines(words: str) -> list[str]:
    return textwrap.wrap(words, 120, break_on_hyphens=False, break_long_words=False)


def table_of_everything() -> list[str]:
    lines = ["| | " + " | ".join(LEVELS.values()) + " |", "|---|" + "---|" * len(LEVELS)]
    for name, kind in BONUSES.items():
        if kind is not Mixture:
            lines.append(
                f"| [{title(name)}]({name}.md) | " + " | ".join(result(level, name) for level in LEVELS) + " |"
            )
    return lines


# Pictures --------------------------------------------------------------------------------------------------------


def picture(name: str) -> list[str]:
    walked = f"a recorded walk of {pictures.ENVS} agents, {pictures.SCORED:,} steps each"
    lessons = f"{pictures.ROLLOUTS} rollouts of {pictures.ENVS} x {pictures.STEPS} steps"
    state = "starts from" if name in pictures.OF_PRESENT else "leads to"
    which = "the left map counts all steps, the right one those whose observation is new in its episode"
    if name == "none":
        words = f"{walked}. Colour: how many steps lead to a cell, as a multiple of the mean; {which}."
    else:
        model = isinstance(pictures.bonus_of(name), LearnedBonus | Mixture)
        trained = f"by a model trained on {lessons} through other levels" if model else ""
        what = f"`{pictures.MIXTURE}`" if name == "mixture" else title(name)
        words = (
            f"{what} on {walked}{', scored ' + trained if trained else ''}. Colour: the mean bonus of the steps of a "
            f"cell, the one that a step {state}, as a multiple of the mean; {which}."
        )
    return [
        f"![{title(name)} on {pictures.LEVEL}: the level, the mean by cell, and one episode]({name}.png)",
        "",
        *_lines(
            f"*{pictures.LEVEL}, seed {pictures.DRAWN}: {words} Drawn by `python docs/bonuses/pictures.py {name}` on a "
            "CPU ([how](index.md#how-the-pictures-are-made)).*"
        ),
    ]


def summary(name: str) -> str:
    """The first paragraph of its page."""
    paragraphs = (HERE / f"{name}.md").read_text().split("\n\n")
    return " ".join(paragraphs[1].split())


def title(name: str) -> str:
    return (HERE / f"{name}.md").read_text().splitlines()[0].removeprefix("# ")


def gallery() -> list[str]:
    cells = [
        f"[![{title(name)}]({name}-map.png)]({name}.md)<br>[**{title(name)}**]({name}.md)<br>{summary(name)}"
        for name in BONUSES
    ]
    rows = [cells[k : k + COLUMNS] for k in range(0, len(cells), COLUMNS)]
    lines = ["| " * COLUMNS + "|", "|---" * COLUMNS + "|"]
    return [*lines, *("| " + " | ".join(row + [""] * (COLUMNS - len(row))) + " |" for row in rows)]


# Pages -----------------------------------------------------------------------------------------------------------


def parts(name: str) -> dict[str, Callable[[], list[str]]]:
    """What can stand between the marks of a page."""
    if name == "index":
        return {
            "gallery": gallery,
            "results": table_of_everything,
            "fields": lambda: table_of_fields(RecurrentBonus, shared=True),
        }
    return {
        "fields": lambda: table_of_fields(BONUSES[name]),
        "results": lambda: table_of_results(name),
        "picture": lambda: picture(name),
    }


def pages() -> Iterator[tuple[Path, str]]:
    """Every page with what it should say."""
    for name in [*BONUSES, "index"]:
        path, known = HERE / f"{name}.md", parts(name)

        def fill(match: re.Match[str], known: dict[str, Callable[[], list[str]]] = known) -> str:
            return "\n".join([f"<!-- make {match[1]} -->", "", *known[match[1]](), "", "<!-- made -->"])

        yield path, re.sub(r"<!-- make (\w+) -->.*?<!-- made -->", fill, path.read_text(), flags=re.DOTALL)


if __name__ == "__main__":
    for path, text in pages():
        path.write_text(text)
