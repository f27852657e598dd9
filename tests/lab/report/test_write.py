from __future__ import annotations

import base64
import csv
import json
import shlex
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from etd import cli
from etd.core.errors import UserError
from etd.lab.report import statistics
from etd.lab.report import write as report
from etd.lab.report.write import Judged
from etd.lab.runs import session
from etd.lab.runs.command import command
from etd.lab.runs.store import Run
from etd.training import presets
from etd.training.config import override, to_dict

NAN = float("nan")
VOID = {"meta", "img", "br", "link", "input", "hr"}


class Page(HTMLParser):
    """Checks that tags are balanced, and keeps them, the text and the tables' cells."""

    def __init__(self, file: Path):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.rows: list[list[str]] = []
        self.feed(file.read_text(encoding="utf-8"))
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if {"th", "td"} & set(self.open):
            self.rows[-1][-1] = f"{self.rows[-1][-1]} {data}".strip()

    def cell(self, label: str, column: int = 1) -> str:
        return next(row[column] for row in self.rows if row[0] == label)


def test_headline_says_what_the_csv_says(trained: Path, tmp_path: Path) -> None:
    with (trained / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    last = rows[-2:]
    assert [row["seed"] for row in last] == ["3", "4"]
    walls = [float(row["wall"]) for row in rows if row["seed"] == "4"]  # written after seed 3's
    page = Page(report.write([trained], tmp_path / "page.html"))
    assert page.cell("environment") == "MiniGrid-Empty-5x5-v0"
    assert page.cell("bonus") == "etd"
    assert page.cell("seeds") == "2"
    assert page.cell("steps per seed") == "320"
    assert max(float(row["episodes"]) for row in last) < 4  # environments, each of which may still be in its first
    assert page.cell("final return") == "too few episodes yet"
    assert page.cell("throughput") == f"{np.median(64 * 2 / np.diff(walls)):,.0f} steps/s"
    assert "jaxlib" in page.text


def test_final_numbers_are_means_over_seeds(logged, tmp_path: Path) -> None:
    run = logged(np.array([[0.0, 0.5], [0.1, 0.7]]), success=np.array([[0.0, 0.6], [0.2, 1.0]]))
    page = Page(report.write([run.path], tmp_path / "page.html"))
    assert page.cell("final return") == "0.600 ± 0.141"
    assert page.cell("final success") == "80.0% ± 28.3%"


def test_steps_to_solve_and_first_success(logged, tmp_path: Path) -> None:
    returns = np.array([[NAN, 0.5, 0.92, 0.8], [0.0, 0.9, 0.95, 0.96], [NAN, NAN, 0.1, 0.2]])
    first = np.array([[-1, 2000, 2000, 2000], [-1, 1000, 1000, 1000], [-1, -1, -1, -1]])
    run = logged(returns, first_success=first)
    page = Page(report.write([run.path], tmp_path / "page.html"))
    assert page.cell("steps to return 0.9") == "3,000, 2,000, not yet"
    assert page.cell("first success at step") == "2,000, 1,000, not yet"
    assert page.cell("steps per seed") == "4,000 of 500,000"


def test_many_seeds_are_summarised() -> None:
    assert report.each([10_000, 20_000, 30_000, 40_000, 50_000, 60_000, None]) == (
        "median 35,000 (10,000 to 60,000); 6 of 7 seeds"
    )
    assert report.each([None] * 7) == "not yet"


def test_compilations_count_as_time_and_not_as_speed(logged) -> None:
    """Two starts of 20 s each, between iterations of 10 s."""
    run = logged(np.zeros((2, 6)), wall=np.array([30.0, 40.0, 50.0, 80.0, 90.0, 100.0]))
    result = statistics.numbers(run)
    assert result.wall == 100
    assert result.throughput == pytest.approx(2 * 1000 / 10)


def test_frozen_seed_is_said(logged, tmp_path: Path) -> None:
    run = logged(np.zeros((2, 2)), alive=np.array([[1, 1], [1, 0]]))
    assert Page(report.write([run.path], tmp_path / "page.html")).cell("seeds") == "2 (frozen by a non-finite loss: 1)"


@pytest.mark.parametrize("mixture", ["", "etd + 0.123456789*rnd*count"])
def test_command_makes_the_same_experiment(trained: Path, monkeypatch: pytest.MonkeyPatch, mixture: str) -> None:
    run, asked = Run.open(trained), {}
    if mixture:
        mixed = override(presets.choose("MiniGrid-DoorKey-8x8-v0", mixture), "bonus.terms.1.factors.0.epochs=3")
        run = Run(trained, {**run.record, "experiment": to_dict(mixed)})

    def train(**given: Any) -> Run:
        asked.update(given)
        return run

    monkeypatch.setattr(session, "train", train)

    program, *words = shlex.split(command(run.experiment, run.path, until=0.9, imports=["shlex"]))
    cli.main(words)
    assert program == "etd"
    assert asked["until"] == 0.9
    assert words[words.index("--import") + 1] == "shlex"
    assert asked["experiment"] == run.experiment
    assert asked["out"] == trained


def test_page_needs_nothing_else(trained: Path, logged, tmp_path: Path) -> None:
    other = logged(np.zeros((1, 3)), bonus="none")
    film = b"GIF89a and so on"
    (other.path / "episode.gif").write_bytes(film)
    file = report.write([trained, other.path], tmp_path)
    assert file == tmp_path / "report.html"
    page = Page(file)
    pictures = [attrs for tag, attrs in page.tags if tag == "img"]
    assert len(pictures) == 4  # the curves, a panel for each run, one film
    assert f"data:image/gif;base64,{base64.b64encode(film).decode()}" in [p["src"] for p in pictures]
    for attrs in pictures:
        assert attrs["alt"]
        assert attrs["src"].startswith("data:image/")
    assert all(attrs.get("scope") in ("row", "col") for tag, attrs in page.tags if tag == "th")
    assert not {tag for tag, _ in page.tags} & {"script", "link", "iframe", "a"}
    source = file.read_text(encoding="utf-8")
    assert not any(word in source for word in ("http://", "https://", "url(", "@import"))
    assert "prefers-color-scheme: dark" in source


def test_pictures_lie_beside_the_page(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["report", str(trained), "--out", str(tmp_path / "new" / "page.html")])
    png, svg = tmp_path / "new" / "page-curves.png", tmp_path / "new" / "page-curves.svg"
    assert capsys.readouterr().out.splitlines()[1] == f"Pictures: {png}, {svg}"
    with Image.open(png) as picture:
        assert picture.format == "PNG"
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    first = svg.read_bytes()
    report.write([trained], tmp_path / "new" / "page.html")
    assert svg.read_bytes() == first


TASKS = ["MiniGrid-DoorKey-8x8-v0", "MiniGrid-Empty-8x8-v0"]
RISING = np.array([[0.0, 0.95, 0.96], [0.0, 0.0, 0.97], [0.2, 0.91, 0.98]])


def many(logged: Any, bonuses: tuple[str, ...] = ("none", "rnd", "etd", "count")) -> list[Path]:
    """Methods on two tasks; ETD solves the first, nobody the second."""
    paths = []
    for env, best in zip(TASKS, (1.0, 0.5), strict=True):
        for bonus in bonuses:
            scale = best * (1.0 if bonus == "etd" else 0.5)
            paths.append(logged(RISING * scale, f"{env}/{bonus}", bonus, env).path)
    return paths


@pytest.mark.usefixtures("rliable")
def test_methods_are_compared_over_tasks(logged, tmp_path: Path) -> None:
    page = Page(report.write(many(logged), tmp_path / "page.html"))
    head = next(row for row in page.rows if row[:2] == ["task", "return"])
    assert head[2:] == ["etd", "no bonus", "rnd", "count"]
    row = next(row for row in page.rows if row[0] == "DoorKey-8x8-v0")
    assert row[1:4] == ["0.9", "2,000 3 of 3", "- 0 of 3"]
    row = next(row for row in page.rows if row[0] == "Empty-8x8-v0")
    assert row[1:3] == ["0.44", "2,000 3 of 3"]
    row = next(row for row in page.rows if row[0] == "rnd")
    assert row[:2] == ["rnd", "1.00 (1.00 to 1.00)"]
    # means over training: 1.91, 0.97 and 2.09 thirds against half of each
    assert row[2].startswith(f"{8 / 9:.2f} (")
    assert row[3] == "2 of 2"


def test_many_runs_are_folded(logged, tmp_path: Path) -> None:
    page = Page(report.write(many(logged), tmp_path / "page.html"))
    tags = [tag for tag, _ in page.tags]
    assert tags.count("img") == 1  # the curves
    assert tags.count("section") == 0
    assert tags.count("details") == 8 * 3
    assert all("open" not in attrs for tag, attrs in page.tags if tag == "details")
    rows = [row for row in page.rows if row[1:2] in (["DoorKey-8x8-v0"], ["Empty-8x8-v0"])]
    assert [row[0] for row in rows] == ["no bonus", "rnd", "etd", "count"] * 2
    assert rows[2][2:] == ["3", "3,000 of 500,000", "0.970 ± 0.010", "97.0% ± 1.0%", "30 s", "300 steps/s", "cpu"]
    assert page.text.count("etd train --env") == 8
    assert "prefers-color-scheme: dark" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_page_without_rliable_says_how_to_get_it(logged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rliable", None)
    page = Page(report.write(many(logged, ("etd", "none")), tmp_path / "page.html"))
    assert page.text.count("pip install 'etd[report]'") == 1
    assert "Steps to a return" in page.text
    assert "Probability of improvement of" not in page.text


def test_one_method_is_not_compared(logged, tmp_path: Path) -> None:
    page = Page(report.write(many(logged, ("etd",)), tmp_path / "page.html"))
    assert "Steps to a return" not in page.text
    assert "rliable" not in page.text


def test_unequal_training_is_said(logged, tmp_path: Path) -> None:
    runs = [logged(np.zeros((2, 3)), "a", "rnd"), logged(np.zeros((2, 2)), "b", "etd")]
    page = Page(report.write([run.path for run in runs], tmp_path / "page.html"))
    assert "Methods were trained for different numbers of steps on DoorKey-8x8-v0." in page.text
    assert "seeds with finished episodes" not in page.text
    runs.append(logged(np.zeros((3, 2)), "c", "count"))
    page = Page(report.write([run.path for run in runs], tmp_path / "page.html"))
    assert "Runs have from 2 to 3 seeds with finished episodes." in page.text


def test_claims_are_judged_in_words_and_colour(logged, tmp_path: Path) -> None:
    claims = [
        Judged("ETD < all & sundry", "0.97", "holds"),
        Judged("It is sooner", "later", "fails"),
        Judged("It is better elsewhere", "", "not run"),
    ]
    file = report.write([logged(RISING).path], tmp_path / "page.html", claims)
    page = Page(file)
    assert page.cell("ETD < all & sundry", 2) == "0.97"
    words = ["holds", "fails", "not-run"]
    assert [attrs["class"] for tag, attrs in page.tags if tag == "span" and attrs.get("class") in words] == words
    assert "1 holds, 1 fails, 1 not run." in page.text
    light, dark = file.read_text(encoding="utf-8").split("prefers-color-scheme: dark", 1)
    assert all(f"--{word}:" in part for part in (light, dark) for word in ("holds", "fails"))


def test_hostile_names_stay_text(logged, tmp_path: Path) -> None:
    name = "<img src=x onerror=alert(1)>\"'&amp;<b>"
    run = logged(np.zeros((1, 2)), name)
    run.record["versions"]["etd"] = "<script>alert(2)</script>"
    (run.path / "run.json").write_text(json.dumps(run.record))
    page = Page(report.write([run.path], tmp_path / "page.html"))
    assert name in page.text
    assert "<script>alert(2)</script>" in page.text
    assert not {"script", "b"} & {tag for tag, _ in page.tags}
    assert all("onerror" not in attrs for _, attrs in page.tags)


@pytest.mark.parametrize("returns", [np.full((2, 3), NAN), np.empty((2, 0))])
def test_nothing_finished_yet(logged, returns: np.ndarray, tmp_path: Path) -> None:
    page = Page(report.write([logged(returns).path], tmp_path / "page.html"))
    assert page.cell("final return") == "too few episodes yet"
    assert page.cell("steps to return 0.9") == "not yet"


def test_mistakes_get_sentences(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at least one run"):
        report.write([], tmp_path / "page.html")
    with pytest.raises(UserError, match="is not a run"):
        report.write([tmp_path / "nowhere"], tmp_path / "page.html")


def test_achievements_get_a_table_of_their_own(logged, tmp_path: Path) -> None:
    columns = {"score": np.array([[1.0, 2.5]]), "unlocked_eat_cow": np.array([[0.0, 0.125]])}
    crafter = logged(np.array([[0.1, 2.0]]), "crafter", env="Crafter-v0", **columns)
    text = report.write([crafter.path], tmp_path / "one.html").read_text()
    assert "<h2>Achievements</h2>" in text
    assert "eat cow" in text
    assert "12.5%" in text
    page = Page(tmp_path / "one.html")
    assert page.cell("final score") == "2.50"
    assert "success" not in text  # which they stand for
    plain = logged(np.array([[0.1, 2.0]]), "plain")
    assert "Achievements" not in report.write([plain.path], tmp_path / "two.html").read_text()
    both = report.write([plain.path, crafter.path], tmp_path / "both.html").read_text()
    assert "final success" in both
    assert "final score" in both


def test_achievements_of_runs_of_one_name_are_told_apart(logged, tmp_path: Path) -> None:
    """As `etd reproduce crafter` names them: by method, in a directory by task."""
    runs = []
    for task, score in (("Crafter", 1.5), ("Crafter-NoLife", 2.5)):
        columns = {"score": np.full((1, 2), score), "unlocked_eat_cow": np.full((1, 2), score / 10)}
        runs.append(logged(np.zeros((1, 2)), f"{task}/etd", env=f"{task}-v0", **columns).path)
    text = report.write(runs, tmp_path / "page.html").read_text().split("<h2>Achievements</h2>")[1]
    text = text.split("</table>")[0]
    for words in ("etd, Crafter-v0", "etd, Crafter-NoLife-v0", "1.50", "2.50", "15.0%", "25.0%"):
        assert text.count(words) == 1
