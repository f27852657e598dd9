"""Figures: what they are made of, what is done, and what a budget leaves."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from threading import Thread

import jax
import numpy as np
import pytest
from tests.lab.conftest import SMALL

from etd.bonuses import ETD, LearnedBonus
from etd.cli import main
from etd.core.errors import UserError
from etd.envs import missing_extra
from etd.lab.compare import reproduce
from etd.lab.paper import figures
from etd.lab.runs import session
from etd.lab.runs.config import check, override, to_dict
from etd.lab.runs.store import Run
from etd.train.presets import choose


@pytest.mark.parametrize("figure", figures.FIGURES)
def test_every_cell_can_be_trained_and_has_a_name_of_its_own(figure):
    cells = figures.cells(figure)
    assert len({cell.name for cell in cells}) == len(cells)
    for cell in cells:
        assert cell.experiment.seeds == 5
        if extra := missing_extra(cell.experiment.env.id):
            pytest.skip(f"{extra} is not installed")
        check(cell.experiment)
        small = check(figures.small(cell).experiment)
        assert small.steps <= 4096
        assert type(small.bonus) is type(cell.experiment.bonus)


def test_the_main_figure_is_eight_levels_by_nine_methods():
    cells = figures.cells("minigrid")
    assert len(cells) == 72
    steps = {cell.task: cell.experiment.steps for cell in cells}
    assert list(steps.values()) == [2_000_000, 3_000_000, 5_000_000, 5_000_000, *[10_000_000] * 2, *[20_000_000] * 2]
    assert {cell.method for cell in cells} == {"etd", "deir", "noveld", "e3b", "ec", "ngu", "rnd", "count", "none"}
    two_q = next(cell for cell in cells if cell.task == "ObstructedMaze-2Q")
    assert two_q.experiment.env.id == "MiniGrid-ObstructedMaze-2Q-Centre-v0"  # the start room of the paper's package


def test_ablations_change_one_field():
    base = figures.cells("minigrid")
    etd = next(cell for cell in base if cell.name == "ObstructedMaze-1Q/etd").experiment
    for figure, field in (("aggregate", "aggregate"), ("symmetry", "symmetric"), ("energy", "energy")):
        values = set()
        for cell in figures.cells(figure):
            assert isinstance(cell.experiment.bonus, ETD)
            values.add(getattr(cell.experiment.bonus, field))
            default = getattr(etd.bonus, field)
            same = replace(cell.experiment.bonus, **{field: default})
            assert replace(cell.experiment, bonus=same) == etd
        assert len(values) == len(figures.cells(figure))


@pytest.mark.parametrize("figure", figures.FIGURES)
def test_the_quick_figure_has_the_same_panels(figure):
    tasks = {cell.task for cell in figures.cells(figure)}
    panels = {figures.small(cell).experiment.env for cell in figures.cells(figure)}
    assert len(panels) == len(tasks)


def test_noise_is_on_the_noisy_levels_alone():
    for cell in figures.cells("noise"):
        assert cell.experiment.env.noise == (0.1 if cell.task.endswith("(noisy)") else 0.0)
        assert isinstance(cell.experiment.bonus, LearnedBonus)


def test_only_chooses_by_task_and_method(tmp_path):
    def names(*only):
        return [place.cell.name for place in reproduce.plan("minigrid", tmp_path, only)]

    assert names("DoorKey-16x16/etd") == ["DoorKey-16x16/etd"]
    assert len(names("*/etd")) == 8
    assert len(names("DoorKey-16x16")) == 9
    assert len(names("DoorKey-16x16/*", "*/etd")) == 16
    with pytest.raises(UserError, match="MultiRoom-N6/etd"):
        names("DoorKey-32x32/*")
    with pytest.raises(UserError, match="minigrid"):
        reproduce.plan("minigird", tmp_path)


def test_fields_of_every_cell_can_be_set(tmp_path):
    places = reproduce.plan("loss", tmp_path, assignments=("precision=tensorfloat32", "ppo.entropy_coef=0.5"))
    assert len(places) == 3
    for place in places:
        assert place.cell.experiment.precision == "tensorfloat32"
        assert place.cell.experiment.ppo.entropy_coef == 0.5
    with pytest.raises(UserError, match="entropi"):
        reproduce.plan("loss", tmp_path, assignments=("ppo.entropi=0.5",))


def test_side_by_side_the_longest_are_first(tmp_path, monkeypatch):
    asked: list[str] = []

    def record(work, workers, cells_each):
        asked.extend(path for path, *_ in work)
        return iter(())

    monkeypatch.setattr(reproduce, "_side_by_side", record)
    places = reproduce.plan("minigrid", tmp_path, ("*/etd", "ObstructedMaze-Full/deir"))
    reproduce.run(places, workers=2)
    lengths = {str(place.path): place.goal for place in places}
    assert sorted(asked) == sorted(lengths)
    assert [lengths[path] for path in asked] == sorted(lengths.values(), reverse=True)


def test_estimates_follow_what_was_seen_here(tmp_path, logged):
    places = reproduce.plan("loss", tmp_path / "runs")
    before = reproduce.estimate(places[0])
    assert before > places[0].goal / 1000  # five seeds on a CPU
    done = logged(np.zeros((5, 10)), wall=np.arange(1, 11) * 0.5)  # 5 x 1000 steps in half a second
    kept = done.keep(places[1].path)
    assert places[1].path == kept.path
    places = reproduce.plan("loss", tmp_path / "runs")
    assert places[1].steps == 10_000
    assert not places[1].done
    seen = reproduce.rate_seen(places)
    assert seen == pytest.approx(10_000)
    expected = reproduce.COMPILE["cpu"] + places[0].goal * 5 / 10_000
    assert reproduce.estimate(places[0], seen) == pytest.approx(expected)
    assert reproduce.estimate(places[0]._replace(steps=places[0].goal)) == 0


def test_the_quick_estimate_is_near_what_was_measured(tmp_path):
    """The main figure's 72 small cells, two at a time on two cores: 12 min 47 s once, 15 min 44 s another time."""
    places = reproduce.plan("minigrid", tmp_path, quick=True)
    *_, total = reproduce.table(places, quick=True, workers=2).columns[-1].cells
    assert total in ("11 min", "12 min", "13 min", "14 min", "15 min")


def test_estimates_know_slow_environments(tmp_path, monkeypatch):
    """Before anything has run: more workers help on the host, and nothing makes up for slow steps."""

    def rate(figure, workers):
        monkeypatch.setenv("ETD_WORKERS", str(workers))
        place = reproduce.Place(figures.cells(figure)[0], tmp_path, 0)  # a plan would ask for the package
        return place.goal * 5 / (reproduce.estimate(place) - reproduce.COMPILE["cpu"])

    assert rate("crafter", 2) == pytest.approx(1 / (1 / 700 + 1 / 1400))  # measured: 420
    assert rate("crafter", 2) < rate("crafter", 16) < rate("minigrid", 2)
    assert rate("craftax", 2) == rate("craftax", 16) < 300
    assert rate("dmc", 2) > 4_000  # measured: 4,018


@pytest.fixture
def tiny(monkeypatch):
    """A figure of two cells that train in a moment, of one compiled program."""
    experiment = choose("MiniGrid-Empty-5x5-v0", "etd")
    experiment = replace(experiment, num_envs=4, rollout_steps=16, steps=320, seeds=2)
    for path, value in SMALL.items():
        experiment = override(experiment, f"{path}={value}")
    cells = [figures.Cell("Empty", "etd", experiment), figures.Cell("Empty again", "etd", experiment)]
    monkeypatch.setitem(figures.FIGURES, "tiny", ("Two cells", lambda: cells))
    return "tiny"


def test_trains_what_is_missing_resumes_what_is_cut_and_skips_the_rest(tiny, tmp_path, capsys, monkeypatch):
    out = str(tmp_path / "runs")
    main(["reproduce", tiny, "--out", out, "--dry-run"])
    assert "to do" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()

    main(["reproduce", tiny, "--out", out, "--only", "Empty/*", "--steps", "128"])
    said = capsys.readouterr().out
    assert "Empty/etd: 128 of 128 steps" in said
    first = Run.open(tmp_path / "runs" / "Empty" / "etd").metrics()

    main(["reproduce", tiny, "--out", out])  # the first goes on to its end, the second begins
    said = capsys.readouterr().out
    assert "Empty/etd: 320 of 320 steps" in said
    assert "Empty again/etd: 320 of 320 steps" in said
    assert "Left:" not in said
    one, two = (Run.open(tmp_path / "runs" / task / "etd").metrics() for task in ("Empty", "Empty-again"))
    np.testing.assert_array_equal(one["bonus_mean"][: len(first["step"])], first["bonus_mean"])
    np.testing.assert_array_equal(one["bonus_mean"], two["bonus_mean"])  # the interrupted one lost nothing
    for name in ("tiny.html", "tiny-curves.png", "tiny-curves.svg"):
        assert (tmp_path / "runs" / name).stat().st_size > 1000

    main(["reproduce", tiny, "--out", out, "--keep", str(tmp_path / "kept")])
    copy = Run.open(tmp_path / "kept" / "Empty-again" / "etd")
    assert copy.metrics()["step"].max() == 320
    assert not (copy.path / "checkpoints").exists()
    assert (tmp_path / "kept" / "tiny-curves.png").exists()
    assert all(place.done for place in reproduce.plan(tiny, tmp_path / "kept"))

    def fail(*_, **__):
        raise AssertionError("a cell that is done was trained again")

    monkeypatch.setattr(session, "train", fail)
    monkeypatch.setattr(session, "resume", fail)
    main(["reproduce", tiny, "--out", out])
    assert "done" in capsys.readouterr().out


def test_a_budget_stops_cleanly_and_says_what_is_left(tiny, tmp_path, capsys):
    out = str(tmp_path / "runs")
    main(["reproduce", tiny, "--out", out, "--only", "Empty/*", "--steps", "64"])
    main(["reproduce", tiny, "--out", out, "--budget", "0"])
    said = capsys.readouterr().out
    assert "Left: Empty/etd, Empty again/etd" in said
    assert Run.open(tmp_path / "runs" / "Empty" / "etd").metrics()["step"].max() == 64


def test_a_budget_too_short_to_begin_begins_nothing(tiny, tmp_path, capsys):
    """Compiling alone takes longer, so that the budget would be overdrawn."""
    main(["reproduce", tiny, "--out", str(tmp_path / "runs"), "--budget", "0.2"])
    said = capsys.readouterr().out
    assert "Nothing has run yet" in said
    assert "Left: Empty/etd, Empty again/etd" in said
    assert not (tmp_path / "runs").exists()


def test_other_settings_in_the_way_are_refused_before_any_cell_trains(tiny, tmp_path, capsys):
    out = tmp_path / "runs"
    main(["reproduce", tiny, "--out", str(out), "--only", "Empty again/*", "--steps", "64"])
    record = out / "Empty-again" / "etd" / "run.json"
    data = json.loads(record.read_text())
    data["experiment"]["ppo"]["entropy_coef"] = 0.5
    record.write_text(json.dumps(data))
    assert "other settings" in refused(capsys, tiny, "--out", str(out))
    assert not (out / "Empty").exists()


def refused(capsys, *args):
    """The sentence that a mistaken command prints."""
    with pytest.raises(SystemExit):
        main(["reproduce", *args])
    return capsys.readouterr().err


def test_a_kept_copy_is_drawn_but_never_trained(tiny, tmp_path, capsys):
    kept = tmp_path / "kept"
    start = [tiny, "--out", str(tmp_path / "runs"), "--only", "Empty again/*", "--steps", "64", "--keep"]
    main(["reproduce", *start, str(kept)])
    rows = (kept / "Empty-again" / "etd" / "metrics.csv").read_bytes()
    said = refused(capsys, tiny, "--out", str(kept))
    assert str(kept / "Empty-again" / "etd") in said
    assert "Choose another --out" in said
    assert not (kept / "Empty").exists()
    (kept / "tiny.html").unlink()
    main(["reproduce", tiny, "--out", str(kept), "--budget", "0"])
    assert (kept / "tiny.html").exists()
    assert (kept / "Empty-again" / "etd" / "metrics.csv").read_bytes() == rows

    new = str(tmp_path / "new")
    assert "the runs themselves" in refused(capsys, tiny, "--out", new, "--keep", new)
    assert not Path(new).exists()  # said before anything is trained
    said = refused(capsys, tiny, "--out", str(kept), "--only", "Empty again/*", "--steps", "64", "--seeds", "3")
    assert "done with 2 seeds, not 3" in said


def test_without_a_checkpoint_a_run_is_at_its_beginning(tiny, tmp_path):
    main(["reproduce", tiny, "--out", str(tmp_path), "--only", "Empty/*", "--steps", "64"])
    assert reproduce.plan(tiny, tmp_path)[0].steps == 64
    for file in (tmp_path / "Empty" / "etd" / "checkpoints").iterdir():
        file.unlink()
    assert reproduce.plan(tiny, tmp_path)[0].steps == 0


def test_a_file_is_no_place_for_runs(tiny, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert "is a file" in refused(capsys, tiny, "--out", str(tmp_path / "file"))


def test_a_cluster_is_given_whole_paths(tiny, tmp_path, monkeypatch):
    """Its workers have other working directories."""
    asked: list[str] = []
    monkeypatch.setattr(reproduce, "_on_cluster", lambda work, _: iter(asked.extend(path for path, *_ in work) or ()))
    monkeypatch.chdir(tmp_path)
    reproduce.run(reproduce.plan(tiny, Path("runs")), cluster="auto")
    assert asked == [str(tmp_path / "runs" / task / "etd") for task in ("Empty", "Empty-again")]


@pytest.fixture
def long(tiny, monkeypatch):
    """Three cells that would train for hours."""
    experiment = replace(figures.cells(tiny)[0].experiment, steps=64 * 10**6)
    cells = [figures.Cell(f"Empty {k}", "etd", experiment) for k in range(3)]
    monkeypatch.setitem(figures.FIGURES, "long", ("Three cells", lambda: cells))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", jax.config.jax_compilation_cache_dir)
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    return "long"


def begun(out):
    """The runs that have logged something."""
    return [file.parent for file in sorted(out.glob("*/etd/metrics.csv")) if len(file.read_text().splitlines()) > 4]


def until(condition):
    for _ in range(1200):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("it never came")


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_asked_to_stop_no_further_cell_begins(long, tmp_path, capsys, workers):
    def ask():
        until(lambda: len(begun(tmp_path)) == workers)
        os.kill(os.getpid(), signal.SIGTERM)

    asker = Thread(target=ask)
    asker.start()
    main(["reproduce", long, "--out", str(tmp_path), "--workers", str(workers)])
    asker.join()
    assert "Left: Empty 0/etd, Empty 1/etd, Empty 2/etd" in capsys.readouterr().out
    assert (tmp_path / "long.html").exists()
    runs = [Run.open(path) for path in begun(tmp_path)]
    assert len(runs) == workers == len(list(tmp_path.glob("Empty*")))
    for run in runs:
        assert int(run.checkpoints()[0].stem) == run.metrics()["iteration"].max()


@pytest.mark.slow
def test_a_killed_worker_is_replaced(tiny, long, tmp_path):
    """The other worker's cell is cut as well; both reach the same end."""
    places = reproduce.plan(tiny, tmp_path, steps=64 * 100)
    killed: list[int] = []

    def kill():
        until(lambda: begun(tmp_path))
        killed.append(multiprocessing.active_children()[0].pid)
        os.kill(killed[0], signal.SIGKILL)

    killer = Thread(target=kill)
    killer.start()
    places = reproduce.run(places, workers=2)
    killer.join()
    assert killed
    assert all(place.done for place in places)
    one, two = (Run.open(place.path).metrics() for place in places)
    np.testing.assert_array_equal(one["iteration"], np.repeat(np.arange(1, 101), 2))
    np.testing.assert_array_equal(one["bonus_mean"], two["bonus_mean"])


@pytest.mark.slow
def test_workers_killed_again_and_again_end_it_with_a_sentence(monkeypatch):
    monkeypatch.setattr(reproduce, "_in_worker", os._exit)  # what a machine without memory does to each
    with pytest.raises(UserError, match="killed 4 times"):
        list(reproduce._side_by_side([(1,)], 1, 1))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's doing, on Linux")
def test_workers_end_with_a_killed_parent(long, tmp_path):
    experiment = to_dict(figures.cells(long)[0].experiment)
    work = [(str(tmp_path / name / "etd"), experiment, None, True, True) for name in "ab"]
    code = f"from etd.lab import reproduce; list(reproduce._side_by_side({work!r}, 2, 1))"
    parent = subprocess.Popen([sys.executable, "-c", code])
    until(lambda: len(begun(tmp_path)) == 2)
    parent.kill()
    parent.wait()
    time.sleep(0.5)
    before = [(path / "metrics.csv").stat().st_size for path in begun(tmp_path)]
    time.sleep(1)
    assert [(path / "metrics.csv").stat().st_size for path in begun(tmp_path)] == before
