"""What a notebook shows of runs and experiments, and whether a run is being trained."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from etd.bonuses import BONUSES
from etd.lab.runs import status
from etd.lab.runs.lock import claim, is_held
from etd.lab.runs.store import Run
from etd.training import presets

GROWING = np.array([[0.1, 0.2, 0.3, 0.4], [0.2, 0.4, 0.6, 0.8]])


class Cells(HTMLParser):
    """The texts of a page's cells, row by row."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")
            self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag not in ("th", "td")

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.rows[-1][-1] += data


def long_ago(run: Run) -> Run:
    for file in (run.metrics_file, run.path / "run.json", run.path / "checkpoints"):
        os.utime(file, (1e9, 1e9))
    return run


def test_whole_numbers_are_whole(logged) -> None:
    run = logged(GROWING, episodes=np.full((2, 4), 20), states=np.array([[1.0, 2.0, np.nan, 3.0]] * 2))
    kinds = {name: column.dtype.kind for name, column in run.metrics().items()}
    assert {name for name, kind in kinds.items() if kind == "i"} == {
        *("iteration", "seed", "step", "episodes", "first_success", "alive")
    }
    assert run.metrics()["step"].tolist() == [1000, 1000, 2000, 2000, 3000, 3000, 4000, 4000]
    frame = pytest.importorskip("pandas").DataFrame(run.metrics())
    assert frame.groupby("seed")["return"].max().tolist() == [0.4, 0.8]


def test_a_number_too_large_for_64_bits_is_no_integer(logged) -> None:
    run = logged(GROWING[:1, :1])
    run.metrics_file.write_text(f"iteration,seed,big\n1,0,{10**30}\n")
    assert run.metrics()["big"].tolist() == [1e30]


def test_a_run_says_what_it_is(logged) -> None:
    run = long_ago(logged(GROWING))
    words = "MiniGrid-DoorKey-8x8-v0, etd, stopped, 4,000 of 500,000 steps, 2 seeds, return 0.60"
    assert repr(run) == f"<Run {run.path}: {words}>"
    rows = dict(Cells(run._repr_html_()).rows)
    assert rows["return"] == "0.60"
    assert rows["state"] == "stopped"


def test_the_curve_has_a_line_per_seed(logged) -> None:
    drawn = re.findall(r'points="([^"]*)"', logged(GROWING)._repr_html_())
    heights = [[float(point.split(",")[1]) for point in line.split()] for line in drawn]
    assert len(heights) == 2
    for line in heights:
        np.testing.assert_allclose(np.diff(line), np.diff(line)[0], atol=0.1)  # straight lines
        assert np.diff(line)[0] < 0  # upwards
    assert heights[0][1] == pytest.approx(heights[1][0], abs=0.1)  # both are returns of 0.2


def test_runs_without_numbers_are_shown_too(logged, tmp_path: Path, trained: Path) -> None:
    empty = Run.create(tmp_path / "<i>&", presets.choose("MiniGrid-Empty-5x5-v0", "none"))
    assert "not begun, 0 of" in repr(empty)
    assert "<i>" not in empty._repr_html_()
    broken = logged(GROWING, "broken")
    broken.metrics_file.unlink()
    broken.metrics_file.mkdir()
    assert "metrics cannot be read" in repr(broken)
    assert "cannot be read: it is a folder" in broken._repr_html_()
    assert "finished, 320 of 320 steps, 2 seeds" in repr(Run.open(trained))


def test_a_training_is_seen_without_touching_its_lock(logged) -> None:
    run = long_ago(logged(GROWING))
    assert status.status(run, run.metrics()).state == "stopped"
    code = f"import pathlib, sys\nfrom etd.lab.runs.lock import claim\nwith claim(pathlib.Path({str(run.path)!r})):\n"
    code += "    print('locked', flush=True)\n    sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as trainer:
        assert trainer.stdout.readline() == b"locked\n"
        if not Path("/proc/locks").exists():
            pytest.skip("this system lists no locks")
        assert is_held(run.path)
        assert status.status(run, run.metrics()).state == "running"
        assert status.status(run, {}).state == "starting"
        trainer.kill()
    assert not is_held(run.path)
    with claim(run.path):
        pass


def test_a_training_elsewhere_is_known_by_what_it_writes(logged) -> None:
    run = logged(GROWING, wall=np.arange(4) * 7.0)
    table = run.metrics()
    now = status.status(run, table)
    assert (now.state, now.iteration, now.pace) == ("running", 4, 7.0)
    assert status.status(run, table, local=True).state == "stopped"
    for ago, state in ((15, "running"), (30, "stopped")):  # iterations take seven seconds
        for file in (run.metrics_file, run.path / "run.json", run.path / "checkpoints"):
            os.utime(file, (time.time() - ago,) * 2)
        assert status.status(run, table).state == state


def test_compilation_does_not_count_as_pace(logged) -> None:
    run = logged(np.zeros((1, 6)), wall=np.array([90.0, 92.0, 94.0, 180.0, 182.0, 184.0]))
    assert status.status(run, run.metrics()).pace == 2.0


# Experiments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["minigrid-etd", "obstructedmaze-deir-author", "noisy-noveld", "control-ngu"])
def test_an_experiments_words_make_it_again(name: str) -> None:
    import etd

    names = {kind.__name__: kind for kind in BONUSES.values()}
    names |= {"Experiment": etd.Experiment, "Task": etd.Task, "PPO": etd.PPO, "Mix": etd.Mix}
    experiment = presets.find(name)
    assert eval(repr(experiment), names) == experiment
    assert experiment.env.id in repr(experiment)
    assert len(repr(experiment)) < 500


def test_what_differs_from_the_preset_comes_first() -> None:
    plain = presets.choose("MiniGrid-DoorKey-8x8-v0", "noveld")
    assert Cells(plain._repr_html_()).rows[0] == ["field", "value"]
    other = replace(plain, seeds=3, bonus=replace(plain.bonus, epochs=7))
    rows = Cells(other._repr_html_()).rows
    assert rows[:4] == [
        ["field", "value", "preset"],
        ["bonus.epochs", "7", "4"],
        ["seeds", "3", "1"],
        ["field", "value"],
    ]
    assert ["ppo.entropy_coef", "0.01"] in rows[4:]
    mixed = replace(plain, bonus="etd + 0.5*rnd")._repr_html_()
    assert "Mixture" in mixed


@pytest.mark.slow
def test_progress_is_one_line_in_a_notebook(tmp_path: Path) -> None:
    """In a real kernel."""
    clients, formats = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    code = f"""
        import etd
        from etd.lab.runs import progress
        progress.NOTEBOOK_EVERY = 0.0
        etd.train("MiniGrid-Empty-5x5-v0", "count", steps=640, num_envs=4, rollout_steps=16,
                  fields={{"ppo.minibatch": 32, "ppo.epochs": 1}}, out={str(tmp_path / "run")!r})
    """
    book = formats.v4.new_notebook(cells=[formats.v4.new_code_cell("\n".join(map(str.strip, code.splitlines())))])
    clients.NotebookClient(book, timeout=300).execute()
    said = [output["data"]["text/plain"] for output in book.cells[0].outputs if output.output_type == "display_data"]
    lines = [words for words in said if " steps  " in words]
    assert len(lines) == 1
    assert "640 steps" in lines[0]
