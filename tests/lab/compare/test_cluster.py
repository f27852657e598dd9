"""Cells as tasks of a real Ray on this machine; needs `pip install 'etd[cluster]'`."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from tests.lab.conftest import SMALL

from etd.core.errors import UserError
from etd.lab.compare import reproduce
from etd.lab.paper import figures
from etd.lab.runs.config import override
from etd.lab.runs.store import Run
from etd.train.presets import choose

ITERATIONS = 1500


def trainers() -> list[int]:
    """Processes that train a cell now, by the title that Ray gives them."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cmdline").read_bytes().startswith(b"ray::train"):
                found.append(int(folder.name))
        except OSError:  # it ended meanwhile
            continue
    return found


def test_an_address_that_is_none_gets_a_sentence():
    pytest.importorskip("ray")
    with pytest.raises(UserError, match="No Ray cluster answers at 'foo'"):
        list(reproduce._on_cluster([], "foo"))


@pytest.mark.slow
def test_a_lost_worker_resumes_from_its_checkpoint(tmp_path, monkeypatch):
    """Two cells on two workers; one worker is killed after its first checkpoint. Both reach the same end, bit
    for bit."""
    ray = pytest.importorskip("ray")
    experiment = choose("MiniGrid-Empty-5x5-v0", "etd")
    experiment = replace(experiment, num_envs=4, rollout_steps=16, steps=64 * ITERATIONS, seeds=1)
    for path, value in SMALL.items():
        experiment = override(experiment, f"{path}={value}")
    cells = [figures.Cell(f"Empty {k}", "etd", experiment) for k in range(2)]
    monkeypatch.setitem(figures.FIGURES, "tiny", ("Two cells", lambda: cells))
    places = reproduce.plan("tiny", tmp_path)
    clocks: list[np.ndarray] = []
    killed: list[bool] = []

    def kill() -> None:
        runs = []
        while len(runs) < 2:
            time.sleep(0.2)
            made = [Run.open(place.path) for place in places if (place.path / "run.json").exists()]
            runs = [run for run in made if run.checkpoints()]
        for run in runs:
            clocks.append(run.metrics()["wall"][: int(run.checkpoints()[0].stem)])
        os.kill(trainers()[0], signal.SIGKILL)
        killed.append(True)

    ray.init(num_cpus=2, log_to_driver=False, runtime_env={"env_vars": {"ETD_SAVE_EVERY": "1"}})
    try:
        killer = Thread(target=kill, daemon=True)
        killer.start()
        after = reproduce.run(places, cluster="auto")
    finally:
        ray.shutdown()
    assert killed
    assert all(place.done for place in after)
    one, two = (Run.open(place.path).metrics() for place in places)
    np.testing.assert_array_equal(one["step"], np.arange(64, 64 * ITERATIONS + 1, 64))
    for column in ("return", "bonus_mean", "ppo_loss", "model_loss"):
        np.testing.assert_array_equal(one[column], two[column])
    # Neither began anew: what stood before the checkpoint has its old clock. One was cut: the clocks part after it.
    for clock, run in zip(clocks, (one, two), strict=True):
        assert 0 < len(clock) < ITERATIONS
        np.testing.assert_array_equal(run["wall"][: len(clock)], clock)
