"""The README and the pages of docs/: their code runs, their commands exist, and their numbers are accounted for."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import etd
import etd.cli
from etd.core import plugins
from etd.lab.paper.figures import FIGURES, entries
from etd.training import presets
from etd.training.config import override
from etd.training.validate import check
from tests.conftest import quick_compilation

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SLURM = ROOT / "examples/slurm.sbatch"

NUMBER = r"(?:an?|one|two|three|five|ten|half an|\d+)(?: more)?"
TIME = re.compile(rf"\b(?:{NUMBER} (?:minute|hour)s?|hours|minutes|\d+ more)\b")
"""How long something takes, in the line before a block or in a command's comment."""
LONG = {"train", "resume", "compare", "reproduce", "distance", "bench"}
"""Commands that may take more than a minute."""
QUICK = re.compile(r"--dry-run|--budget \d+")
"""Options with which they do not, or say themselves how long they take."""
OTHERS = {"ray", "sbatch", "nvidia-cuda-mps-control"}
"""Programs that are not ours."""
ELSEWHERE = {"stable_baselines3", "torch"}
"""Packages outside the test extra."""


class Block(NamedTuple):
    """A fenced block of a page."""

    page: Path
    line: int
    """of its first line, from 1"""
    kind: str
    file: str
    """what it is saved as, if it has a title"""
    before: str
    """the last line of text before it"""
    text: str

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    lines = page.read_text().splitlines()
    before, start = "", None
    for k, line in enumerate(lines):
        if line.startswith("```") and start is None:
            start = k
        elif line == "```" and start is not None:
            kind, _, rest = lines[start][3:].partition(" ")
            title = re.fullmatch(r'title="(.*)"', rest)
            yield Block(page, start + 2, kind, title[1] if title else "", before, "\n".join(lines[start + 1 : k]))
            start = None
        elif start is None and line.strip():
            before = line
    assert start is None, f"{page} ends inside a block"


BLOCKS = [block for page in PAGES for block in blocks(page)]
PYTHON = [block for block in BLOCKS if block.kind == "python"]


def commands(block: Block) -> Iterator[tuple[list[str], str]]:
    """The words of each line, and its comment."""
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            _, _, comment = line.partition("  # ")
            yield words, comment


LINES = [
    pytest.param(block, words, comment, id=f"{block.name} {' '.join(words)}")
    for block in BLOCKS
    if block.kind == "sh"
    for words, comment in commands(block)
]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder like a checkout, with the pages' modules in it."""
    for name in ("results", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    modules = {block.file: block.text for block in PYTHON if block.file}
    for name, text in modules.items():
        (tmp_path / name).write_text(text + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plugins, "_named", set(plugins.named()))  # what a page names is not for other tests
    for place in (tmp_path, ROOT / "examples"):
        monkeypatch.syspath_prepend(str(place))
    yield tmp_path
    for name in modules:
        sys.modules.pop(name.removesuffix(".py"), None)


# Python ----------------------------------------------------------------------------------------------------------


class Chapter(NamedTuple):
    """Blocks of a page that run one after the other, in one namespace."""

    name: str
    blocks: list[Block]


def chapters() -> Iterator[Any]:
    """The blocks of each page by what they need: nothing, time, or packages outside the test extra. A block that takes
    long may use what the quick ones before it have made."""
    for page in PAGES:
        mine = [block for block in PYTHON if block.page == page and not block.file]
        outside = [block for block in mine if ELSEWHERE & _imported(block)]
        quick = [block for block in mine if not TIME.search(block.before) and block not in outside]
        within = [block for block in mine if block not in outside]
        name = str(page.relative_to(ROOT))
        if quick:
            yield pytest.param(Chapter(name, quick), id=name)
        if within != quick:
            yield pytest.param(Chapter(name, within), id=f"{name}, all", marks=pytest.mark.slow)
        if outside:
            yield pytest.param(Chapter(name, outside), id=f"{name}, with more", marks=pytest.mark.suites)


def _imported(block: Block) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(block.text)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        found |= {name.partition(".")[0] for name in names}
    return found


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize("chapter", list(chapters()))
def test_code_runs(chapter: Chapter, request: pytest.FixtureRequest) -> None:
    for package in ELSEWHERE & set().union(*map(_imported, chapter.blocks)):
        pytest.importorskip(package)
    space: dict[str, Any] = {"__name__": "page"}
    slow = request.node.get_closest_marker("slow")
    for block in chapter.blocks:
        source = "\n" * (block.line - 1) + block.text  # so that a traceback names the page's line
        code = compile(source, str(block.page), "exec")
        if slow:
            exec(code, space)
        else:
            with quick_compilation():
                exec(code, space)


def test_modules_can_be_imported(desk: Path) -> None:
    for file in desk.glob("*.py"):
        importlib.import_module(file.stem)


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.name)
def test_code_uses_names_that_exist(block: Block) -> None:
    """Also the code that takes too long to run here."""
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "etd":
            assert node.attr in etd.__all__ or f"import etd.{node.attr}" in block.text, node.attr


def test_blocks_have_a_kind() -> None:
    assert [block.name for block in BLOCKS if block.kind not in ("python", "sh")] == []


# Commands --------------------------------------------------------------------------------------------------------


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """What the command line would do: (command, arguments)."""
    calls: list[tuple[str, dict[str, Any]]] = []

    def stand_in(name: str, command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def note(**arguments: Any) -> None:
            calls.append((name, arguments))

        return note

    for table in (etd.cli.COMMANDS, etd.cli.BENCHMARKS):
        for name, command in table.items():
            monkeypatch.setitem(table, name, stand_in(name, command))
    return calls


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize(("block", "words", "comment"), LINES)
def test_commands_exist(block: Block, words: list[str], comment: str, parsed: list[tuple[str, dict[str, Any]]]) -> None:
    program, *rest = words
    if program == "etd":
        understand(rest, parsed)
        if rest[0] in LONG and not QUICK.search(" ".join(rest)):
            assert TIME.search(comment) or TIME.search(block.before), "say how long it takes"
    elif program == "make":
        assert re.search(rf"^{rest[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert {name for part in re.findall(r"\[(.*)\]", " ".join(rest)) for name in part.split(",")} <= set(extras)
    elif program == "python":
        script = (ROOT / rest[0]).read_text()
        options = [word.lstrip("-").replace("-", "_") for word in rest if word.startswith("--")]
        assert all(re.search(rf'(^    {one}:|"--{one}")', script, re.MULTILINE) for one in options), options
        assert TIME.search(block.before), "say how long it takes"
    else:
        assert program in OTHERS


def understand(words: list[str], parsed: list[tuple[str, dict[str, Any]]]) -> None:
    """Parse a command, and look up the names that it uses."""
    try:
        etd.cli.main(words)
    except SystemExit as stop:
        pytest.fail(f"etd {' '.join(words)} ends with the status {stop.code}")
    ((name, given),) = parsed
    plugins.trust(given.get("import_", ()))
    if name == "reproduce":
        assert given["figure"] in FIGURES
    elif name == "show":
        _overridden(presets.find(given["preset"]), given)
    elif name in ("train", "check", "training", "compare"):
        for env in _several(given.get("env")) or ["MiniGrid-DoorKey-8x8-v0"]:
            family = etd.Task(env).family
            if family is not None and not family.presets and (why := family.absence()):
                pytest.skip(f"{env} {why}")  # which presets it has, only the environment itself can say
            for bonus in _several(given.get("bonus")) or ["etd"]:
                _overridden(presets.choose(env, bonus), given)


def _several(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, tuple) else [value]


def _overridden(experiment: Any, given: dict[str, Any]) -> None:
    for assignment in given.get("set_", ()):
        experiment = override(experiment, assignment)
    check(experiment)


@pytest.mark.parametrize("index", range(8))
def test_the_slurm_file_asks_for_what_there_is(index: int, parsed: list[tuple[str, dict[str, Any]]]) -> None:
    """Run by a real shell, with etd replaced by what prints its arguments."""
    script = SLURM.read_text().replace("exec etd", "exec printf '%s\\n'")
    around = {"SLURM_ARRAY_TASK_ID": str(index), "PATH": "/usr/bin:/bin"}
    out = subprocess.run(["bash", "-eu", "-c", script], env=around, capture_output=True, text=True, check=True).stdout
    understand(out.splitlines(), parsed)
    (only,) = parsed[0][1]["only"]
    tasks = list(dict.fromkeys(entry.task for entry in entries("minigrid")))
    assert only == f"{tasks[index]}/*"
    assert len(tasks) == 8


# Numbers ---------------------------------------------------------------------------------------------------------

MEASURED = re.compile(r"(?<!Python )\d\.\d\d\b|\d ?%|steps/s|\d k\b|\d M\b|times as (?:fast|long)|\d{2},\d{3}")
HELD = re.compile(r"\]\((?:\.\./)*results/")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_measured_number_comes_with_its_source(page: Path) -> None:
    """In every section that quotes one there is a link to where it was measured."""
    text = re.sub(r"^```.*?^```$|`[^`]*`|\$[^$]*\$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    sections = re.split(r"^#+ ", text, flags=re.MULTILINE)
    bare = [one.splitlines()[0] for one in sections if MEASURED.search(one) and not HELD.search(one)]
    assert bare == []


# The site --------------------------------------------------------------------------------------------------------


@pytest.mark.suites
def test_the_site_builds_and_asks_nobody_for_anything(tmp_path: Path) -> None:
    for package in ("material", "mkdocstrings_handlers.python", "latex2mathml"):
        pytest.importorskip(package)
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    fetched = re.compile(r"<(?:script|img|iframe|link)\b[^>]*(?:src|href)=\"?https?://[^>]*>|url\(\"?https?://")
    files = [file for kind in ("html", "css") for file in tmp_path.rglob(f"*.{kind}")]
    assert [hit for file in files for hit in fetched.findall(file.read_text())] == []
    assert len(files) > 20
    start = (tmp_path / "index.html").read_text()
    assert '<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">' in start
    assert "$" not in re.sub(r"<(script|code|pre)\b.*?</\1>", "", start, flags=re.DOTALL)
    api = (tmp_path / "api.html").read_text()
    assert [name for name in etd.__all__ if f'id="etd.{name}"' not in api] == []
