"""What users bring along, seen as they would see it: etd is installed, their modules are on the path."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from etd.core import plugins
from tests.conftest import QUICK_VARIABLES, quick_compilation

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (ROOT / "examples", ROOT / "tests" / "plugin")
"""A file of one's own, and a small project beside it."""

PPO = {"ppo.minibatch": 32, "ppo.features": 8, "ppo.latent": 8, "ppo.epochs": 1, "ppo.norm": "none"}
SIZES = {"num_envs": 4, "rollout_steps": 16, "steps": 192}
TINY = [word for name, value in {**PPO, **SIZES}.items() for word in ("--set", f"{name}={value}")]


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(plugins, "_named", set())
    for folder in FOLDERS:
        monkeypatch.syspath_prepend(str(folder))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] in ("etd_example", "point_maze", "written")]:
        del sys.modules[name]


@pytest.fixture(autouse=True, scope="module")
def compile_quickly() -> Iterator[None]:
    with quick_compilation():
        yield


def etd(*words: str, folder: Path, ok: bool = True, path: tuple[Path, ...] = FOLDERS, **variables: str) -> str:
    """Run the console script in a fresh process and a folder; what it said."""
    result = subprocess.run(
        command(*words), cwd=folder, env=surroundings(path, **variables), capture_output=True, text=True
    )
    said = result.stdout + result.stderr
    assert (result.returncode == 0) == ok, said
    return said


def command(*words: str) -> list[str]:
    return [str(Path(sys.executable).with_name("etd")), *words]


def surroundings(path: tuple[Path, ...] = FOLDERS, **variables: str) -> dict[str, str]:
    """As in a new shell, with compiled programs shared between processes."""
    inherited = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*map(str, path), *inherited]),
        **QUICK_VARIABLES,
        "JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        **variables,
    }
