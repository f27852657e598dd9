"""Trainings as tasks of a real Ray on this machine; needs `pip install 'etd[cluster]'`."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from tests.lab.conftest import small_experiment

from etd.core.errors import UserError
from etd.lab.compare.execute import _Cluster, execute
from etd.lab.compare.plan import Entry, make
from etd.lab.runs.store import Run

ITERATIONS = 1500


def trainers() -> list[int]:
    """Processes that train now, by the title that Ray gives them."""
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
        _Cluster("foo")


@pytest.mark.slow
def test_a_lost_worker_resumes_from_its_checkpoint(tmp_path, monkeypatch):
    """Two trainings on two workers; one worker is killed after its first checkpoint. Both reach the same end, bit
    for bit."""
    ray = pytest.importorskip("ray")
    experiment = small_experiment(steps=64 * ITERATIONS, seeds=1)
    plan = make([Entry(f"Empty {k}", "etd", experiment) for k in range(2)], tmp_path)
    clocks: list[np.ndarray] = []
    killed: list[bool] = []

    def kill() -> None:
        runs = []
        while len(runs) < 2:
            time.sleep(0.2)
            made = [Run.open(job.path) for job in plan.jobs if (job.path / "run.json").exists()]
            runs = [run for run in made if run.checkpoints()]
        for run in runs:
            clocks.append(run.metrics()["wall"][: int(run.checkpoints()[0].stem)])
        os.kill(trainers()[0], signal.SIGKILL)
        killed.append(True)

    ray.init(num_cpus=2, log_to_driver=False, runtime_env={"env_vars": {"ETD_SAVE_EVERY": "1"}})
    try:
        killer = Thread(target=kill, daemon=True)
        killer.start()
        after = execute(plan, cluster="auto")
    finally:
        ray.shutdown()
    assert killed
    assert all(job.done for job in after.jobs)
    one, two = (Run.open(job.path).metrics() for job in plan.jobs)
    np.testing.assert_array_equal(one["step"], np.arange(64, 64 * ITERATIONS + 1, 64))
    for column in ("return", "bonus_mean", "ppo_loss", "model_loss"):
        np.testing.assert_array_equal(one[column], two[column])
    # Neither began anew: what stood before the checkpoint has its old clock. One was cut: the clocks part after it.
    for clock, run in zip(clocks, (one, two), strict=True):
        assert 0 < len(clock) < ITERATIONS
        np.testing.assert_array_equal(run["wall"][: len(clock)], clock)


@pytest.mark.slow
def test_asked_to_stop_a_task_saves_first(tmp_path):
    """One of two trainings runs, for there is one core; the other is not begun."""
    ray = pytest.importorskip("ray")
    experiment = small_experiment(steps=64 * 10**6, seeds=1)
    plan = make([Entry(f"Empty {k}", "etd", experiment) for k in range(2)], tmp_path)

    def ask() -> None:
        while not (files := list(tmp_path.glob("*/etd/metrics.csv"))) or len(files[0].read_text().splitlines()) < 4:
            time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGTERM)

    ray.init(num_cpus=1, log_to_driver=False)
    try:
        asker = Thread(target=ask, daemon=True)
        asker.start()
        after = execute(plan, cluster="auto")
    finally:
        ray.shutdown()
    assert not any(job.done or job.error for job in after.jobs)
    (run,) = [Run.open(job.path) for job in after.jobs if job.path.exists()]
    assert int(run.checkpoints()[0].stem) == run.metrics()["iteration"].max()
