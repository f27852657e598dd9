"""A run's files alone never make etd import a module outside it."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import etd as package
from etd.core import plugins
from etd.lab.report.write import write
from etd.training.config import from_dict, unavailable
from tests.outside.conftest import PPO, SIZES, etd

TRAP = """
from pathlib import Path
Path({!r}).touch()
from etd_example.bonus import Impact
from point_maze import PointMaze
"""


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that leaves a file when it is imported, and the file."""
    (tmp_path / "written.py").write_text(TRAP.format(str(tmp_path / "sprung")))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "sprung"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of ours, trained for a moment."""
    out = tmp_path_factory.mktemp("runs") / "run"
    return package.train("Maze-Spiral-v0", "none", out=out, quiet=True, fields={**SIZES, **PPO, "steps": 64}).path


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> package.Run:
    shutil.copytree(trained, tmp_path / "run")
    return package.Run.open(tmp_path / "run")


def tampered(run: package.Run, **parts: Any) -> Path:
    record = json.loads((run.path / "run.json").read_text())
    record["experiment"].update(parts)
    (run.path / "run.json").write_text(json.dumps(record))
    return run.path


PARTS = {
    "bonus": {"bonus": {"class": "written:Impact", "scale": 2.0}},
    "ppo": {"ppo": {"class": "written:Impact"}},
    "env": {"env": {"id": "written:PointMaze", "custom": {"class": "written:PointMaze", "size": 4}}},
    "registered": {"env": {"id": "gymnasium:written:Thing-v0"}},
    "id": {"env": {"id": "written:PointMaze"}},
    "trunk": {"ppo": {"trunk": {"class": "written:Impact"}}},
}


@pytest.mark.parametrize("part", PARTS)
def test_no_file_imports_a_module(run: package.Run, trap: Path, part: str) -> None:
    path = tampered(run, **PARTS[part])
    for use in (package.resume, package.load, lambda path: package.evaluate(path, episodes=1)):
        with pytest.raises(package.UserError):
            use(path)
    write([path], path.parent / "page.html")
    assert not trap.exists()
    assert "written" not in sys.modules


@pytest.mark.parametrize("part", ["env", "bonus", "ppo", "mix"])
def test_no_file_names_a_part_by_a_string(run: package.Run, trap: Path, part: str) -> None:
    """As the user may, whose names are imported."""
    with pytest.raises(package.UserError, match=f"{part} should be a group of fields, not 'written:Impact'"):
        package.Run.open(tampered(run, **{part: "written:Impact"}))
    assert not trap.exists()


def test_the_sentence_names_the_module_and_the_way(run: package.Run, trap: Path) -> None:
    path = tampered(run, **PARTS["bonus"])
    with pytest.raises(
        package.UserError, match=r"uses written:Impact.*`--import written` \(in Python: import it first\)"
    ):
        package.load(path)
    said = etd("evaluate", str(path), folder=path.parent, ok=False)
    assert "`--import written`" in said
    assert not trap.exists()


def test_having_imported_it_is_enough(run: package.Run, trap: Path) -> None:
    path = tampered(run, **PARTS["bonus"])
    __import__("written")
    assert package.Run.open(path).require().bonus.scale == 2.0


def test_an_installed_package_declares_itself(run: package.Run, trap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tampered(run, bonus={"class": "etd_example.bonus:Impact"})
    sys.modules.pop("etd_example.bonus", None)
    with pytest.raises(package.UserError, match=r"--import etd_example\.bonus"):
        package.Run.open(path).require()
    point = __import__("importlib.metadata").metadata.EntryPoint("impact", "etd_example:Impact", plugins.GROUP)
    monkeypatch.setattr(plugins, "_points", lambda: (point,))
    assert package.Run.open(path).require().bonus.features == 64


@pytest.mark.parametrize(
    "custom",
    [
        {"class": "os:system", "command": "touch sprung"},
        {"class": "subprocess:Popen", "args": "touch sprung"},
        {"class": "subprocess:call", "args": "touch sprung"},
        {"class": "numpy:load", "file": "x", "allow_pickle": True},
        {"class": "dataclasses:dataclass"},
        {"class": "pathlib:Path"},
        {"class": "etd.core.files:os.system", "command": "touch sprung"},
        {"class": "etd.core.plugins:import_module", "name": "written"},
        {"class": "etd.core.plugins:trust", "modules": ["written"]},
        {"class": "tests.outside.test_trust:shutil.rmtree", "path": "."},
    ],
    ids=lambda custom: custom["class"],
)
def test_what_happens_to_be_loaded_is_not_called(
    custom: dict[str, Any], trap: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """Nor what a module of ours, or one the user trusts, happens to import."""
    __import__("subprocess")
    monkeypatch.setattr(plugins, "_named", {"tests.outside.test_trust"})
    monkeypatch.chdir(tmp_path)
    try:
        built = from_dict({"env": {"id": "x", "custom": custom}, "bonus": {"class": "none"}})
    except package.UserError:
        built = None
    assert built is None or unavailable(built)
    assert not (tmp_path / "sprung").exists()
