"""What is built, what it needs on each Python, and that it runs where nothing else is installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

import etd
from etd.core.errors import UserError
from etd.envs import families

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = [
    kind.rpartition(" ")[2] for kind in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", kind)
]  # oldest first


def built(kind: str) -> set[str]:
    """The paths inside a wheel or an sdist, without building it."""
    plugin = pytest.importorskip(f"hatchling.builders.{kind}")
    builder = getattr(plugin, f"{kind.capitalize()}Builder")(str(ROOT))
    return {str(file.distribution_path) for file in builder.recurse_included_files()}


def test_the_wheel_is_the_package_with_its_data() -> None:
    there = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src" / "etd").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    wheel = built("wheel")
    assert wheel == there
    assert {Path(name).suffix for name in wheel} == {".py", ".typed", ".html", ".txt"}
    assert "etd/py.typed" in wheel


def test_the_sdist_has_nothing_that_a_user_does_not_need() -> None:
    sdist = built("sdist")  # the build adds pyproject.toml, README.md and LICENSE
    assert {Path(name).parts[0] for name in sdist} == {"src", "examples", "CHANGELOG.md", "CITATION.cff"}
    assert {name.removeprefix("src/") for name in sdist if name.startswith("src/")} == built("wheel")


def test_one_version_everywhere() -> None:
    changes = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert changes[0] == Version(etd.__version__).base_version
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == etd.__version__


def test_tests_run_on_the_oldest_and_the_newest_python() -> None:
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())
    assert workflow["jobs"]["tests"]["strategy"]["matrix"]["python"] == [PYTHONS[0], PYTHONS[-1]]


def test_workflows_and_hooks_call_what_is_there() -> None:
    make = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z]+):", make, re.MULTILINE))
    for workflow in (ROOT / ".github" / "workflows").glob("*.yml"):
        jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
        commands = [step.get("run", "") for job in jobs for step in job["steps"]]
        assert {command.split()[1] for command in commands if command.startswith("make ")} <= targets
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    lint = re.findall(r"^\t\$\(TEST\)/(.*)", make.partition("\nlint:")[2].partition("\n\n")[0], re.MULTILINE)
    plain = [hook["entry"].removeprefix(".venv-test/bin/").replace(" --force-exclude", "") for hook in hooks]
    assert plain == [command.removesuffix(" .") for command in lint]


SUITES = [suite for suite in families.FAMILIES if suite.extra and suite.name != "mujoco"]  # Gymnasium brings that one


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_a_suite_is_left_out_where_it_cannot_be_installed(suite: families.Family) -> None:
    """Its extra and its record, from which the message comes, agree about the newest Python."""
    needs = [Requirement(line) for line in PROJECT["optional-dependencies"][suite.extra]]
    marker = next(need.marker for need in needs if need.name.replace("-", "_") == suite.packages[0])
    for python in PYTHONS:
        installed = marker is None or marker.evaluate({"python_version": python})
        assert installed == (tuple(map(int, python.split("."))) <= suite.last_python)


def test_where_it_cannot_be_installed_the_message_says_so() -> None:
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    suite = families.Family("new", "new", (), extra="new", packages=("no_such_package",), last_python=(3, 10))
    with pytest.raises(UserError, match=f"new:one needs no_such_package, .* on Python {here}: use Python 3.10"):
        suite.make("new:one")


@pytest.mark.slow
def test_the_wheel_runs_the_demo_in_a_fresh_environment(tmp_path: Path) -> None:
    """The demo's own commands, for two iterations, from an empty folder."""
    pytest.importorskip("hatchling")
    free = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def run(*command: str | Path, cwd: Path) -> str:
        done = subprocess.run(
            list(map(str, command)), cwd=cwd, env=free, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    wheels, empty = tmp_path / "wheels", tmp_path / "empty"
    empty.mkdir()
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", wheels, ROOT, cwd=empty)
    venv.create(tmp_path / "venv", with_pip=True)
    bin_ = tmp_path / "venv" / "bin"
    run(bin_ / "python", "-m", "pip", "install", *wheels.glob("*.whl"), cwd=empty)
    assert str(tmp_path) in run(bin_ / "python", "-c", "import etd; print(etd.__file__)", cwd=empty)
    demo = re.findall(r"^\t\$\(DEMO\)/etd (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert [line.split()[0] for line in demo] == ["train", "watch", "report"]
    for line in demo:
        run(bin_ / "etd", *line.replace("300_000", "16_384").split(), cwd=empty)
    assert {"report-curves.png", "episode.gif", "report.html"} <= {path.name for path in (empty / "demo").iterdir()}
