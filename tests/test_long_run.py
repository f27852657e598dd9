"""The watcher of long runs tells what grows from what does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests import long_run
from tests.lab.conftest import SMALL


def table(rng: np.random.Generator, rows: int = 400) -> dict[str, np.ndarray]:
    """A run that grows at first and then only trembles."""
    names = ("device", "arrays", "handles", "threads", "shared")
    flat = {name: np.full(rows, 20.0) for name in names}
    settled = 900 * (1 - np.exp(-np.arange(rows) / 20))
    slow = rng.exponential(20, rows) * (rng.random(rows) < 0.02)  # checkpoints
    return {
        "step": np.arange(rows) * 100.0,
        "seconds": np.arange(rows) * 1.0,
        **flat,
        "rss": settled + rng.normal(0, 2, rows),
        "step_time": 8 + rng.normal(0, 0.1, rows) + slow,
    }


def test_what_settles_is_flat(rng: np.random.Generator, capsys: pytest.CaptureFixture[str]) -> None:
    assert long_run.judge(table(rng))
    assert "GROWS" not in capsys.readouterr().out


@pytest.mark.parametrize(("name", "by"), [("rss", 60.0), ("handles", 2.0), ("arrays", 2.0), ("step_time", 2.0)])
def test_what_grows_is_told(rng: np.random.Generator, name: str, by: float, capsys: pytest.CaptureFixture[str]) -> None:
    grown = table(rng)
    grown[name] = grown[name] + np.linspace(0, by, len(grown[name]))
    assert not long_run.judge(grown)
    assert [line for line in capsys.readouterr().out.splitlines() if "GROWS" in line] != []


@pytest.mark.slow
@pytest.mark.usefixtures("compile_quickly")
def test_a_training_is_recorded_row_by_row(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    fields = {**SMALL, "num_envs": 4, "rollout_steps": 16, "seed": 3}  # the program of the fixture ``trained``
    sets = [f"--set={name}={value}" for name, value in fields.items()]
    long_run.main(["--out", str(file), "--steps", "1280", "--seeds", "2", "--env", "MiniGrid-Empty-5x5-v0", *sets])
    found = long_run.read(file)
    np.testing.assert_array_equal(found["iteration"], np.arange(2, 21))
    assert (found["rss"] > 50).all()
    assert len(set(found["handles"])) == 1
    long_run.main(["--draw", str(file)])
    assert file.with_suffix(".png").stat().st_size > 5000
