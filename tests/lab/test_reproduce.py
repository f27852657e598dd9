"""Figures: what they are made of, what is done, and what a budget leaves."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from etd.bonuses import ETD, LearnedBonus
from etd.cli import main
from etd.core.errors import UserError
from etd.envs import wanting
from etd.lab import figures, reproduce, session
from etd.lab.fields import check, override
from etd.lab.presets import choose
from etd.lab.store import Run
from tests.lab.conftest import SMALL


@pytest.mark.parametrize("figure", figures.FIGURES)
def test_every_cell_can_be_trained_and_has_a_name_of_its_own(figure):
    cells = figures.cells(figure)
    assert len({cell.name for cell in cells}) == len(cells)
    for cell in cells:
        assert cell.experiment.seeds == 5
        if extra := wanting(cell.experiment.env.id):
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
    places = reproduce.plan("loss", tmp_path, assignments=("precision=tensorfloat32", "ppo.entropy=0.5"))
    assert len(places) == 3
    for place in places:
        assert place.cell.experiment.precision == "tensorfloat32"
        assert place.cell.experiment.ppo.entropy == 0.5
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
    experiment = replace(experiment, num_envs=4, rollout=16, steps=320, seeds=2)
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


def test_other_settings_in_the_way_are_refused(tiny, tmp_path, capsys):
    out = tmp_path / "runs"
    main(["reproduce", tiny, "--out", str(out), "--only", "Empty/*", "--steps", "64"])
    record = out / "Empty" / "etd" / "run.json"
    data = json.loads(record.read_text())
    data["experiment"]["ppo"]["entropy"] = 0.5
    record.write_text(json.dumps(data))
    with pytest.raises(SystemExit):
        main(["reproduce", tiny, "--out", str(out), "--only", "Empty/*"])
    assert "other settings" in capsys.readouterr().err
