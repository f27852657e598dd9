"""Plans: which trainings, where their runs lie, how long they take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.lab.conftest import small_experiment

from etd.bonuses import ETD
from etd.core.errors import UserError
from etd.lab.compare.plan import (
    COMPILE,
    ERROR,
    Entry,
    Job,
    Plan,
    estimate,
    folders,
    job_at,
    make,
    rate_seen,
    steps_per_second,
    table,
)
from etd.training.presets import choose

BONUSES = ("etd", "rnd", "none")


@pytest.fixture
def entries():
    """Three methods on each of two tasks."""
    levels = {"small": "MiniGrid-Empty-5x5-v0", "large (noisy)": "MiniGrid-Empty-8x8-v0"}
    return [Entry(task, bonus, choose(env, bonus)) for task, env in levels.items() for bonus in BONUSES]


def test_only_chooses_by_task_and_method(entries, tmp_path):
    def names(*only):
        return [job.entry.name for job in make(entries, tmp_path, only=only).jobs]

    assert names("small/etd") == ["small/etd"]
    assert names("*/etd") == ["small/etd", "large (noisy)/etd"]
    assert names("small") == ["small/etd", "small/rnd", "small/none"]
    assert len(names("small/*", "*/etd")) == 4
    assert len(names()) == 6
    with pytest.raises(UserError, match="small/etd"):
        names("huge/*")


def test_what_is_given_goes_to_every_training(entries, tmp_path):
    plan = make(entries, tmp_path, seeds=3, steps=1000, assignments=("precision=tensorfloat32", "ppo.entropy_coef=0.5"))
    for job in plan.jobs:
        experiment = job.entry.experiment
        assert (experiment.seeds, experiment.steps, experiment.precision) == (3, 1000, "tensorfloat32")
        assert experiment.ppo.entropy_coef == 0.5
    assert plan.notes == ()


def test_a_bonus_field_goes_where_there_is_one(entries, tmp_path):
    plan = make(entries, tmp_path, assignments=("bonus.learning_rate=0.5",))
    rates = {job.entry.method: getattr(job.entry.experiment.bonus, "learning_rate", None) for job in plan.jobs}
    assert rates == {"etd": 0.5, "rnd": 0.5, "none": None}
    assert plan.notes == ("bonus.learning_rate=0.5 does not apply to none: no such field.",)


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("ppo.entropi=0.5", "entropi"),
        ("bonus.lerning_rate=1", "lerning_rate"),  # none has it
        ("bonus.learning_rate=fast", "takes a number"),
        ("bonus.learning_rate=-1", "out of range"),
        ("bonus", "not an assignment"),
    ],
)
def test_a_wrong_assignment_is_a_sentence(entries, tmp_path, assignment, words):
    with pytest.raises(UserError, match=words):
        make(entries, tmp_path, assignments=(assignment,))


def test_two_trainings_of_one_name_are_refused(entries, tmp_path):
    with pytest.raises(UserError, match="'small/etd'"):
        make([*entries, entries[0]], tmp_path)


def test_a_place_does_not_depend_on_what_else_is_chosen(tmp_path):
    experiment = small_experiment()
    entries = [Entry("a task", method, experiment) for method in ("etd + rnd", "etd - rnd", "etd")]
    every = {job.entry.method: job.path for job in make(entries, tmp_path).jobs}
    assert len(set(every.values())) == 3
    assert every["etd"] == tmp_path / "a-task" / "etd"
    (alone,) = make(entries, tmp_path, only=("*/etd - rnd",)).jobs
    assert alone.path == every["etd - rnd"]


def test_folders_suit_every_file_system():
    names = [
        "dmc:acrobot-swingup_sparse",
        "ALE/Pong-v5",
        "etd + 0.5*rnd",
        "DoorKey (noisy)",
        "Étude",
        "..",
        "?",
        "x" * 300,
    ]
    found = folders(names)
    assert found["dmc:acrobot-swingup_sparse"] == "dmc-acrobot-swingup_sparse"
    assert found["ALE/Pong-v5"] == "ALE-Pong-v5"
    assert found["etd + 0.5*rnd"] == "etd-0.5xrnd"
    assert found["DoorKey (noisy)"] == "DoorKey-noisy"
    for folder in found.values():
        assert 0 < len(folder) <= 120
        assert set(folder) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._=-")
        assert folder not in (".", "..")
    assert len({folder.lower() for folder in found.values()}) == len(names)


def test_names_that_differ_by_capitals_or_signs_get_folders_of_their_own():
    names = ["a.b:Impact", "a.b-Impact", "A.B:impact", "x" * 300, "x" * 301]
    assert len({folder.lower() for folder in folders(names).values()}) == 5


def test_an_error_is_seen_until_the_training_is_done(logged, tmp_path):
    run = logged(np.zeros((2, 5)), "copy").keep(tmp_path / "task" / "etd")
    (run.path / ERROR).write_text("It broke.")
    entry = Entry("task", "etd", replace(run.experiment, steps=10_000))
    job = job_at(entry, run.path)
    assert (job.steps, job.done, job.error) == (5000, False, "It broke.")
    assert list(table(Plan((job,), tmp_path)).columns[3].cells) == ["failed", "total"]
    done = job_at(replace(entry, experiment=replace(run.experiment, steps=5000)), run.path)
    assert (done.done, done.error) == (True, "")


def test_estimates_follow_what_was_seen_here(entries, tmp_path, logged):
    entries = [replace(entry, experiment=replace(entry.experiment, seeds=5)) for entry in entries]
    first, second, *_ = make(entries, tmp_path / "runs").jobs
    assert estimate(first) > first.goal / 1000  # five seeds on a CPU
    done = logged(np.zeros((5, 10)), wall=np.arange(1, 11) * 0.5)  # 5 x 1000 steps in half a second
    assert done.keep(second.path).path == second.path
    plan = make(entries, tmp_path / "runs")
    assert plan.jobs[1].steps == 10_000
    assert not plan.jobs[1].done
    seen = rate_seen(plan)
    assert seen == pytest.approx(10_000)
    assert estimate(first, seen) == pytest.approx(COMPILE["cpu"] + first.goal * 5 / 10_000)
    assert estimate(replace(first, steps=first.goal)) == 0


def test_estimates_know_slow_environments(monkeypatch):
    """Before anything has run: more workers help on the host, and nothing makes up for slow steps."""

    def rate(env, workers):
        monkeypatch.setenv("ETD_WORKERS", str(workers))
        return steps_per_second(replace(choose(env, "etd"), seeds=5), "cpu")

    assert rate("Crafter-v0", 2) == pytest.approx(1 / (1 / 700 + 1 / 1400))  # measured: 420
    assert rate("Crafter-v0", 2) < rate("Crafter-v0", 16) < rate("MiniGrid-DoorKey-8x8-v0", 2)
    assert rate("Craftax-Classic-Pixels-v1", 2) == rate("Craftax-Classic-Pixels-v1", 16) < 300
    assert rate("dmc:hopper-hop", 2) > 4_000  # measured: 4,018


def test_a_job_is_done_at_the_end_of_its_last_iteration(tmp_path):
    entry = Entry("task", "etd", replace(small_experiment(), steps=65))
    assert isinstance(entry.experiment.bonus, ETD)
    assert Job(entry, tmp_path).goal == 128
    assert not Job(entry, tmp_path, 64).done
    assert Job(entry, tmp_path, 128).done
