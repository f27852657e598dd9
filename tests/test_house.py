"""The plan of the house: who may import whom, one name for one thing, and public names that explain themselves."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import etd

SOURCE = Path(etd.__file__).parent
LINE = ["core", "nets", "envs", "bonuses", "agent", "training", "adapters", "lab", "cli"]
ROOMS = ["runs", "report", "film", "live", "mazes", "bench", "check", "compare", "paper"]
APART = [
    {"bonuses", "agent"},
    {"adapters", "lab"},
    {"film", "mazes"},
    {"film", "bench"},
    {"mazes", "bench"},
    {"check", "bench"},
]
"""Neither imports the other."""


def imports() -> Iterator[tuple[str, str]]:
    """(module, what it imports) inside the package, imports in functions included."""
    for file in SOURCE.rglob("*.py"):
        module = ".".join(("etd", *file.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
        if module in ("etd", "etd.__main__"):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("etd"):
                for alias in node.names:
                    yield module, f"{node.module}.{alias.name}"
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.partition(".")[0] == "etd":
                        yield module, alias.name


def test_a_module_imports_only_from_packages_to_its_left() -> None:
    wrong = []
    for module, other in imports():
        here, there = (name.split(".")[1] if "." in name else "" for name in (module, other))
        known = here in LINE and there in LINE
        if not known or LINE.index(there) > LINE.index(here) or {here, there} in APART:
            wrong.append(f"{module} imports {other}")
    assert wrong == []


def test_a_room_of_the_lab_imports_only_from_rooms_to_its_left() -> None:
    wrong = []
    for module, other in imports():
        if module.startswith("etd.lab.") and other.startswith("etd.lab."):
            here, there = module.split(".")[2], other.split(".")[2]
            if ROOMS.index(there) > ROOMS.index(here) or {here, there} in APART:
                wrong.append(f"{module} imports {other}")
    assert wrong == []


def test_the_citation_is_of_this_version() -> None:
    root = SOURCE.parents[1]
    said = re.search(r"^version: (\S+)$", (root / "CITATION.cff").read_text(), re.MULTILINE)
    assert said
    assert said[1] == etd.__version__
    project = tomllib.loads((root / "pyproject.toml").read_text())
    assert "version" in project["project"]["dynamic"]
    assert (root / project["tool"]["hatch"]["version"]["path"]).samefile(SOURCE / "core" / "version.py")
    assert f"## {etd.__version__.partition('.dev')[0]}" in (root / "CHANGELOG.md").read_text()


def test_no_two_types_share_a_name() -> None:
    homes = defaultdict(set)
    for file in SOURCE.rglob("*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].add(str(file.relative_to(SOURCE)))
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


def test_bonuses_come_without_the_lab() -> None:
    code = "import sys, etd.bonuses; print([m for m in sys.modules if m.startswith(('etd.lab', 'etd.training'))])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["bench", "training", "--help"]])
def test_help_comes_without_what_takes_long_to_import(words: list[str]) -> None:
    code = f"""
import sys, etd.cli
try:
    etd.cli.main({words})
except SystemExit:
    print([name for name in ("jax", "flax", "optax", "numpy", "matplotlib", "rich") if name in sys.modules])
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.startswith("usage: etd")
    assert out.splitlines()[-1] == "[]"


# Public names ----------------------------------------------------------------------------------------------------

MARKS = {"Agent": pytest.mark.slow, "compare": pytest.mark.slow, "distance": pytest.mark.slow}
TABLES = {"BONUSES", "PRESETS"}
"""Dictionaries, which have no docstring."""
NEEDED = {
    *("EnvSpec", "Discrete", "Box", "Transition", "Rollout", "DeviceEnv", "Bonus", "LearnedBonus", "BonusState"),
    *("Scored", "PPO", "Mix", "Experiment", "Task", "Run", "train", "resume", "load", "evaluate", "check", "compare"),
    *("distance", "Agent"),
}


def test_all_that_a_user_needs_is_public() -> None:
    assert set(etd.__all__) >= NEEDED
    assert all(getattr(etd, name) is not None for name in etd.__all__)


@pytest.mark.parametrize("name", sorted(set(etd.__all__) - TABLES))
def test_a_public_name_says_what_it_is(name: str) -> None:
    thing = getattr(etd, name)
    own = thing.__dict__.get("__doc__") if inspect.isclass(thing) else thing.__doc__
    assert own
    assert len(own.strip()) > 20
    assert ">>> " in own


@pytest.mark.usefixtures("compile_quickly")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=MARKS.get(name, ())) for name in sorted(set(etd.__all__) - TABLES)]
)
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    thing = getattr(etd, name)
    module = importlib.import_module(thing.__module__)
    found = doctest.DocTestFinder(recurse=False).find(thing, name, module, globs={**vars(module), "etd": etd})
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    runner = doctest.DocTestRunner(optionflags=flags)
    assert sum(runner.run(example).failed for example in found) == 0
