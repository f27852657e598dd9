"""The pages of docs/bonuses: every bonus has one, its generated parts are up to date, and what it shows can be done."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from etd.bonuses import BONUSES
from etd.training import presets
from etd.training.config import override

DOCS = Path(__file__).resolve().parents[1] / "docs" / "bonuses"
sys.path.insert(0, str(DOCS))  # its scripts are no package

import make  # noqa: E402
import pictures  # noqa: E402

every_bonus = pytest.mark.parametrize("name", list(BONUSES))
every_page = pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)


def test_every_bonus_has_a_page_and_every_page_a_bonus() -> None:
    assert {page.stem for page in DOCS.glob("*.md")} == {*BONUSES, "index"}


def test_generated_parts_are_up_to_date() -> None:
    old = [path.name for path, text in make.pages() if path.read_text() != text]
    assert old == [], "run docs/bonuses/make.py"


@every_bonus
def test_a_page_has_all_its_parts(name: str) -> None:
    text = (DOCS / f"{name}.md").read_text()
    assert set(re.findall(r"<!-- make (\w+) -->", text)) == {"picture", "fields", "results"}
    assert text.count("<!-- made -->") == 3
    assert "$$" in text
    assert len(make.summary(name)) < 130


@every_bonus
def test_every_field_is_explained(name: str) -> None:
    rows = make.declared(BONUSES[name], shared=False) + make.declared(BONUSES[name], shared=True)
    assert [one.name for _, one, words in rows if not words] == []


@every_bonus
def test_pictures_are_wide_and_light(name: str) -> None:
    path = DOCS / f"{name}.png"
    with Image.open(path) as picture, Image.open(DOCS / f"{name}-map.png") as small:
        assert 800 <= picture.width <= 1000
        assert small.width == small.height
    assert path.stat().st_size < 60_000


@every_page
def test_commands_are_valid(page: Path) -> None:
    commands = re.findall(r"^(etd train .*)$", page.read_text(), re.MULTILINE)
    assert commands or page.stem == "index"
    for command in commands:
        words = shlex.split(command, comments=True)[2:]
        given = [(words[k], words[k + 1]) for k in range(0, len(words), 2)]
        chosen = presets.choose(dict(given)["--env"], dict(given)["--bonus"])
        assert type(chosen.bonus) is BONUSES[page.stem]
        for option, value in given:
            if option == "--set":
                override(chosen, value)


@every_page
def test_formulas_are_whole(page: Path) -> None:
    """As the converter to MathML takes them: between dollars, on one line, with braces in pairs."""
    text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.DOTALL)
    formulas = re.findall(r"\$\$(.+?)\$\$|\$(.+?)\$", text)
    assert text.count("$") == sum(4 if block else 2 for block, _ in formulas)
    for formula in (block or inline for block, inline in formulas):
        assert formula.count("{") == formula.count("}"), formula
        assert "\\begin" not in formula
        assert "|" not in formula, formula


@every_page
def test_links_lead_to_files_and_headings(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, heading = link.partition("#")
        target = page.parent / path if path else page
        titles = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE) if heading else []
        if not target.exists() or (heading and heading not in [title.lower().replace(" ", "-") for title in titles]):
            broken.append(link)
    assert broken == []


def test_maps_average_by_cell_relative_to_the_mean() -> None:
    places = np.repeat([[[0, 0]], [[0, 1]]], 10, 0)  # ten steps in each of two cells
    values = np.repeat([[1.0], [3.0]], 10, 0)
    counted = np.ones((20, 1), bool)
    np.testing.assert_allclose(pictures.per_cell(values, places, counted, (1, 3)), [[0.5, 1.5, np.nan]])
    counted[0] = False  # nine are too few
    np.testing.assert_allclose(
        pictures.per_cell(values, places, counted, (1, 3)), [[np.nan, 30 / 39 * 19 / 10, np.nan]]
    )
