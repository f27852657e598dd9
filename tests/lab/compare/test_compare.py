"""``etd compare`` from its options to its page."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from threading import Thread

import numpy as np
import pytest
from tests.conftest import QUICK_VARIABLES
from tests.lab.conftest import SMALL

import etd
from etd.bonuses import BONUSES, NoBonus
from etd.cli import main
from etd.core.errors import UserError
from etd.lab.compare.compare import compare, plan_pairs, summary
from etd.lab.compare.plan import Entry, make
from etd.lab.runs import session
from etd.lab.runs.store import Run

ENVS = ("MiniGrid-Empty-5x5-v0", "MiniGrid-Empty-6x6-v0")
FIELDS = {"num_envs": 4, "rollout_steps": 16}
FIELDS |= {path: value for path, value in SMALL.items() if path.startswith("ppo")}
"""Bonuses without a model are compiled in a moment, and have no fields."""


@dataclass(frozen=True)
class Broken(NoBonus):
    """Fails when it is traced."""

    def score(self, state, rollout, key):
        raise ZeroDivisionError("in the user's own code")


def command(out, *words, envs=ENVS, bonuses=("count", "none"), steps=320):
    names = [word for env in envs for word in ("--env", env)] + [word for name in bonuses for word in ("--bonus", name)]
    names += [word for path, value in FIELDS.items() for word in ("--set", f"{path}={value}")]
    main(["compare", *names, "--seeds", "2", "--steps", str(steps), "--out", str(out), *words])


def refused(capsys, *args, **named):
    with pytest.raises(SystemExit) as stop:
        command(*args, **named)
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return said


@pytest.mark.slow
def test_two_bonuses_in_two_environments_interrupted_and_gone_on_with(tmp_path, capsys, monkeypatch):
    out = tmp_path / "runs"
    command(out, "--dry-run")
    said = capsys.readouterr().out
    assert "4 runs on" in said
    assert not out.exists()

    command(out, envs=ENVS[:1], steps=128)
    first = Run.open(out / ENVS[0] / "count").metrics()
    command(out)
    said = capsys.readouterr().out
    for env in ENVS:
        for name in ("count", "none"):
            run = Run.open(out / env / name)
            assert f"{env}/{name}: 320 of 320 steps" in said
            assert (run.experiment.env.id, run.experiment.seeds) == (env, 2)
            assert run.metrics()["step"].max() == 320
    again = Run.open(out / ENVS[0] / "count").metrics()
    np.testing.assert_array_equal(again["bonus_mean"][: len(first["step"])], first["bonus_mean"])
    assert "Left:" not in said
    assert "Failed:" not in said
    table = said[said.index("Final return") :]
    assert all(word in table for word in (*ENVS, "count", "none"))
    page = (out / "compare.html").read_text()
    for words in ("Learning curves", "Probability of improvement of count", "Return over all tasks", "no bonus"):
        assert words in page
    assert (out / "compare-curves.png").stat().st_size > 1000

    def fail(*_, **__):
        raise AssertionError("a training that is done was trained again")

    monkeypatch.setattr(session, "train", fail)
    monkeypatch.setattr(session, "resume", fail)
    command(out, "--keep", str(tmp_path / "kept"))
    assert (tmp_path / "kept" / "compare.html").exists()
    assert Run.open(tmp_path / "kept" / ENVS[1] / "none").kept

    # What is done is not shown as something else.
    assert "other settings" in refused(capsys, out, "--set", "ppo.entropy_coef=0.5")
    assert "other settings" in refused(capsys, out, "--seeds", "3", "--budget", "0")


@pytest.mark.slow
def test_stopped_by_a_signal_it_ends_with_that_status(tmp_path, capsys):
    rows = tmp_path / ENVS[0] / "none" / "metrics.csv"

    def ask():
        while not rows.exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    asker = Thread(target=ask, daemon=True)
    asker.start()
    with pytest.raises(SystemExit) as stop:
        command(tmp_path, envs=ENVS[:1], bonuses=("none", "count"), steps=64 * 10**6)
    assert stop.value.code == 128 + signal.SIGTERM
    assert f"Left: {ENVS[0]}/none, {ENVS[0]}/count." in capsys.readouterr().out


@pytest.mark.slow
def test_one_that_fails_is_told_at_the_end_and_on_the_page(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(BONUSES, "broken", Broken)
    with pytest.raises(SystemExit) as stop:
        command(tmp_path, envs=ENVS[:1], bonuses=("broken", "none"))
    assert stop.value.code == 1
    said = capsys.readouterr().out
    assert f"{ENVS[0]}/broken: failed, see below" in said
    assert f"{ENVS[0]}/none: 320 of 320 steps" in said
    end = said[said.index("Failed:") :]
    assert "ZeroDivisionError: in the user's own code" in end
    assert str(tmp_path / ENVS[0] / "broken" / "error.txt") in end
    assert "Left:" not in said
    page = (tmp_path / "compare.html").read_text()
    assert "Failed runs" in page
    assert "ZeroDivisionError: in the user&#x27;s own code" in page

    command(tmp_path, "--dry-run", envs=ENVS[:1], bonuses=("broken", "none"))
    said = capsys.readouterr().out
    assert "failed" in said
    assert "done" in said


@pytest.mark.slow
def test_a_function_gives_the_runs_the_page_and_the_failures(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(BONUSES, "broken", Broken)
    options = {"seeds": 2, "steps": 320, "fields": FIELDS, "quiet": True}
    found = etd.compare(ENVS[0], ["none", "broken", "2*none"], out=tmp_path, **options)
    assert capsys.readouterr().out == ""
    assert set(found.runs) == {(ENVS[0], "none"), (ENVS[0], "2*none")}
    assert found.runs[ENVS[0], "2*none"].path == tmp_path / ENVS[0] / "2xnone"
    assert found.page == tmp_path / "compare.html"
    assert list(found.failures) == [(ENVS[0], "broken")]
    assert "ZeroDivisionError" in found.failures[ENVS[0], "broken"]
    assert found.left == ()

    left = compare(ENVS[0], ["none", "2*none", "3*none"], out=tmp_path, budget=0, **options)
    assert left.left == (f"{ENVS[0]}/3*none",)
    assert set(left.runs) == set(found.runs)
    nothing = compare(ENVS[0], ["3*none"], out=tmp_path / "new", budget=0, **options)
    assert (nothing.runs, nothing.page, nothing.failures) == ({}, None, {})


@pytest.mark.slow
def test_two_workers_come_to_what_one_does(tmp_path, monkeypatch):
    """The compiler's options are those of the command line, here and in the workers."""
    for name, value in QUICK_VARIABLES.items():
        monkeypatch.setenv(name, value)
    options = {"seeds": 2, "steps": 320, "fields": FIELDS, "quiet": True}
    one = compare(ENVS[:1], ["count", "none"], out=tmp_path / "one", **options)
    two = compare(ENVS[:1], ["count", "none"], out=tmp_path / "two", workers=2, **options)
    assert two.failures == {}
    assert set(one.runs) == set(two.runs)
    for key, run in one.runs.items():
        other = two.runs[key].metrics()
        for name, column in run.metrics().items():
            if name != "wall":
                np.testing.assert_array_equal(other[name], column, name)


@pytest.mark.parametrize(
    ("envs", "bonuses", "words"),
    [
        ((), ("etd",), "at least one environment, as in --env"),
        (ENVS, (), "at least one bonus, as in --bonus etd"),
        ((ENVS[0], ENVS[0]), ("etd",), f"environment '{ENVS[0]}' is named 2 times"),
        (ENVS, ("etd", "none", "etd "), "bonus 'etd' is named 2 times"),
        (ENVS, ("etd+rnd", "etd + rnd"), "'etd\\+rnd' and 'etd \\+ rnd' are the same bonus"),
        (("MiniGrid-Emty-5x5-v0",), ("etd",), "Did you mean"),
        (ENVS, ("edt",), "Did you mean 'etd'"),
        (ENVS, ("etd / rnd",), "neither a bonus"),
    ],
)
def test_a_mistake_is_a_sentence(tmp_path, envs, bonuses, words):
    with pytest.raises(UserError, match=words):
        plan_pairs(envs, bonuses, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_the_preset_decides_what_is_not_given(tmp_path):
    one, two = plan_pairs("MiniGrid-ObstructedMaze-1Q-v0", ["etd", "etd + 0.5*rnd"], tmp_path).jobs
    assert (one.entry.experiment.seeds, one.entry.experiment.steps) == (5, 5_000_000)
    assert one.entry.experiment.mix.extrinsic == 10.0
    assert two.path == tmp_path / "MiniGrid-ObstructedMaze-1Q-v0" / "etd-0.5xrnd"


def cells(table):
    return [[str(cell) for cell in column.cells] for column in table.columns]


def test_the_summary_is_the_interquartile_mean_of_what_seeds_ended_with(logged, tmp_path):
    def entry(task, method, returns):
        run = logged(np.asarray(returns, float)[:, None] * [0.5, 1], f"runs/{task}/{method}")
        (run.path / "checkpoints" / "0000002.npz").touch()
        return Entry(task, method, run.experiment)

    five = entry("a", "etd", [0, 0.4, 0.5, 0.6, 1])
    entries = [five, entry("a", "none", [0.3]), entry("b", "etd", [np.nan, np.nan])]
    entries += [Entry("b", "none", five.experiment)]
    plan = make(entries, tmp_path / "runs", assignments=("num_envs=10", "ppo.minibatch=500", "bonus.minibatch=500"))
    done = summary(
        make([five], tmp_path / "runs", steps=2000, assignments=("ppo.minibatch=500", "bonus.minibatch=500"))
    )
    assert cells(done)[1] == ["0.50 (0.13 to 0.87)"]
    tasks, etd_column, none_column = cells(summary(plan))
    assert tasks == ["a", "b"]
    assert etd_column == ["0.50 (0.13 to 0.87), stopped at 0%", "too few episodes, stopped at 0%"]
    assert none_column == ["0.30 (one seed), stopped at 0%", "not run"]


@pytest.mark.parametrize(
    ("seeds", "title"),
    [
        ([1], "Final return"),
        ([2, 3, 1], "Final return: mean over seeds (95 % interval)"),
        ([4, 5], "Final return: interquartile mean over seeds (95 % interval)"),
        ([3, 4], "Final return: mean over seeds, interquartile from four seeds on (95 % interval)"),
    ],
)
def test_the_summary_says_what_its_numbers_are(logged, tmp_path, seeds, title):
    entries = []
    for count in seeds:
        run = logged(np.ones((count, 2)), f"runs/{count}/etd")
        (run.path / "checkpoints" / "0000002.npz").touch()
        entries.append(Entry(str(count), "etd", run.experiment))
    assignments = ("num_envs=10", "ppo.minibatch=500", "bonus.minibatch=500")
    assert summary(make(entries, tmp_path / "runs", assignments=assignments)).title == title


def test_a_long_list_of_methods_goes_down(tmp_path):
    plan = plan_pairs(ENVS, ["etd", "rnd", "none"], tmp_path)
    method, *tasks = summary(plan).columns
    assert [column.header for column in tasks] == list(ENVS)
    assert list(method.cells) == ["etd", "rnd", "none"]
