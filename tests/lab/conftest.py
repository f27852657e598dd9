from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from etd.lab.runs import session
from etd.lab.runs.store import Run
from etd.training import presets
from etd.training.config import override
from etd.training.experiment import Experiment
from tests.conftest import quick_compilation

SMALL = {"ppo.minibatch": 32, "ppo.features": 8, "ppo.latent": 8, "ppo.epochs": 1}
SMALL |= {"bonus.minibatch": 32, "bonus.features": 8, "bonus.latent": 8, "bonus.embedding": 8, "bonus.epochs": 1}


def small_experiment(bonus: str = "etd", steps: int = 320, seeds: int = 2) -> Experiment:
    """One that trains in a moment, of one compiled program for all steps."""
    experiment = replace(presets.choose("MiniGrid-Empty-5x5-v0", bonus), steps=steps, seeds=seeds)
    experiment = replace(experiment, num_envs=4, rollout_steps=16)
    for path, value in SMALL.items():
        experiment = override(experiment, f"{path}={value}")
    return experiment


Logged = Callable[..., Run]


@pytest.fixture
def rliable() -> None:
    pytest.importorskip("rliable", reason="the report extra has rliable on Python 3.13 and older")


@pytest.fixture(autouse=True, scope="module")
def compile_quickly() -> Iterator[None]:
    with quick_compilation():
        yield


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run: two small agents, numbered from 3, trained for a moment."""
    path = tmp_path_factory.mktemp("runs") / "tiny"
    sizes = {"num_envs": 4, "rollout_steps": 16, "steps": 320, "seed": 3, "seeds": 2}
    with quick_compilation():
        session.train("MiniGrid-Empty-5x5-v0", out=path, quiet=True, fields=SMALL, **sizes)
    return path


@pytest.fixture
def logged(tmp_path: Path) -> Logged:
    """Writes a run with given returns [S, I], and other columns as given or harmless."""

    def log(
        returns: np.ndarray,
        name: str = "run",
        bonus: str = "etd",
        env: str = "MiniGrid-DoorKey-8x8-v0",
        wall: np.ndarray | None = None,
        **columns: np.ndarray,
    ) -> Run:
        seeds, iterations = np.shape(returns)
        run = Run.create(
            tmp_path / name, replace(presets.choose(env, bonus), seeds=seeds, num_envs=10, rollout_steps=100)
        )
        wall = np.arange(1, iterations + 1) * 10.0 if wall is None else wall
        for i in range(iterations):
            rows = []
            for s in range(seeds):
                row = {"iteration": i + 1, "seed": s, "step": (i + 1) * 1000, "return": returns[s][i]}
                row |= {"success": returns[s][i], "first_success": -1, "alive": 1, "bonus_mean": 0.0, "bonus_std": 0.0}
                row |= {key: values[s][i] for key, values in columns.items()}
                rows.append({**row, "wall": wall[i]})
            run.log(rows)
        return run

    return log
