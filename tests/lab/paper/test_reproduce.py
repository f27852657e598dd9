"""``etd reproduce``: what is trained, what is skipped, what a budget leaves."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from tests.lab.conftest import small_experiment

from etd.cli import main
from etd.core.errors import UserError
from etd.envs import families
from etd.lab.compare.plan import Entry, table
from etd.lab.paper import figures, reproduce
from etd.lab.runs import session
from etd.lab.runs.store import Run


def test_the_quick_estimate_is_near_what_was_measured(tmp_path):
    """The main figure's 72 small trainings, two at a time on two cores: 12 min 47 s once, 15 min 44 s another time."""
    plan = reproduce.plan("minigrid", tmp_path, quick=True)
    *_, total = table(plan, workers=2).columns[-1].cells
    assert total in ("11 min", "12 min", "13 min", "14 min", "15 min")


@pytest.fixture
def tiny(monkeypatch):
    """A figure of two trainings that take a moment, of one compiled program."""
    entries = [Entry(task, "etd", small_experiment()) for task in ("Empty", "Empty again")]
    monkeypatch.setitem(figures.FIGURES, "tiny", ("Two trainings", lambda: entries))
    return "tiny"


@pytest.mark.parametrize("figure", ["crafter", "craftax", "miniworld", "dmc", "metaworld", "halfcheetah"])
def test_a_plan_needs_no_suite_but_its_training_does(figure, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(families, "find_spec", lambda _: None)  # a machine with nothing but etd
    words = ["reproduce", figure, "--out", str(tmp_path / "runs")]
    main([*words, "--dry-run"])
    said = capsys.readouterr().out
    assert "to do" in said
    assert len(re.findall(r"Training needs: (pip install 'etd\[|use Python)", said)) == 1
    with pytest.raises(SystemExit):
        main(words)
    assert re.search(
        r"which (is not installed: pip install 'etd\[|cannot be installed .*: use Python)", capsys.readouterr().err
    )
    assert not (tmp_path / "runs").exists()
    with pytest.raises(UserError, match="does not divide"):  # mistakes are found all the same
        reproduce.plan(figure, tmp_path / "runs", assignments=("ppo.minibatch=7",))


def test_only_some_may_be_asked_for(tmp_path):
    plan = reproduce.plan("minigrid", tmp_path, only=("DoorKey-16x16/*", "*/etd"))
    assert len(plan.jobs) == 16
    with pytest.raises(UserError, match="minigrid"):
        reproduce.plan("minigird", tmp_path)


@pytest.mark.slow
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
    assert all(job.done for job in reproduce.plan(tiny, tmp_path / "kept").jobs)

    def fail(*_, **__):
        raise AssertionError("a training that is done was trained again")

    monkeypatch.setattr(session, "train", fail)
    monkeypatch.setattr(session, "resume", fail)
    main(["reproduce", tiny, "--out", out])
    assert "done" in capsys.readouterr().out


@pytest.mark.slow
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


def test_other_settings_in_the_way_are_refused_before_anything_trains(tiny, tmp_path, capsys):
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
    assert reproduce.plan(tiny, tmp_path).jobs[0].steps == 64
    for file in (tmp_path / "Empty" / "etd" / "checkpoints").iterdir():
        file.unlink()
    assert reproduce.plan(tiny, tmp_path).jobs[0].steps == 0


def test_a_file_is_no_place_for_runs(tiny, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert "is a file" in refused(capsys, tiny, "--out", str(tmp_path / "file"))
