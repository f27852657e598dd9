"""Runs on disk: exact resume, damage, and the sentences for what is not a run."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from etd import UserError
from etd.lab.runs import session
from etd.lab.runs.lock import claim
from etd.lab.runs.store import Run
from etd.training import backend


def leaves(state):
    def bare(leaf):
        return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf

    return [np.asarray(leaf) for leaf in jax.tree.leaves(jax.tree.map(bare, state))]


@pytest.fixture
def run(trained, tmp_path):
    """A copy of the trained run, free to be damaged."""
    return Run.open(shutil.copytree(trained, tmp_path / "copy"))


def without_wall(run):
    return {name: column for name, column in run.metrics().items() if name != "wall"}


def test_resume_is_bit_exact(trained, tmp_path):
    """5 iterations equal 2, a stop, a resume and 3 more: every bit of the state, every number logged."""
    whole = Run.open(trained)
    split = session.train(experiment=whole.experiment, steps=2 * 64, out=tmp_path / "split", quiet=True)
    assert int(split.checkpoints()[0].stem) == 2
    session.resume(split.path, steps=5 * 64, quiet=True)

    assert Run.open(split.path).experiment == whole.experiment
    like = backend.shapes(whole.experiment)
    for ours, theirs in zip(leaves(split.load(like)[0]), leaves(whole.load(like)[0]), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_equal(without_wall(split), without_wall(whole))
    assert (np.diff(split.metrics()["wall"]) >= 0).all()  # the clock goes on where it stood


def test_until_waits_until_as_many_episodes_ended_as_there_are_environments(trained, tmp_path):
    """Returns here are never negative, so that nothing else is waited for. A level ends after 100 steps."""
    experiment = Run.open(trained).experiment
    run = session.train(experiment=experiment, steps=20 * 64, until=0.0, out=tmp_path / "run", quiet=True)
    fewest = run.metrics()["episodes"].reshape(-1, 2).min(1)
    assert (fewest[:-2] < experiment.num_envs).all()  # an iteration is read while the next runs
    assert fewest[-1] >= experiment.num_envs


def test_a_finished_run_has_one_row_per_iteration_and_seed(trained):
    run = Run.open(trained)
    rows = list(zip(*(run.metrics()[name].astype(int) for name in ("iteration", "seed", "step")), strict=True))
    assert rows == [(i, seed, i * 64) for i in range(1, 6) for seed in (3, 4)]


@pytest.mark.parametrize("damage", ["truncated", "flipped", "emptied"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(run, damage):
    state, last, _ = run.load(backend.shapes(run.experiment))
    good = run.save(state, last + 1)
    bad = run.save(state, last + 2)
    content = bytearray(bad.read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 255
    bad.write_bytes({"truncated": content[: len(content) // 3], "flipped": content, "emptied": b""}[damage])
    restored, iteration, complaints = run.load(backend.shapes(run.experiment))
    assert iteration == int(good.stem)
    assert len(complaints) == 1
    assert bad.name in complaints[0]
    for ours, theirs in zip(leaves(restored), leaves(state), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_no_sound_checkpoint_is_said(run):
    for file in run.checkpoints():
        file.write_bytes(b"not a checkpoint")
    with pytest.raises(UserError, match="no readable checkpoint"):
        run.load(backend.shapes(run.experiment))


def test_a_write_that_fails_half_way_leaves_no_checkpoint(run):
    resource = pytest.importorskip("resource")
    state, last, _ = run.load(backend.shapes(run.experiment))
    newest = run.checkpoints()[0]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (newest.stat().st_size // 2, hard))
    try:
        with pytest.raises(UserError, match="cannot be written: the system allows no larger file here"):
            run.save(state, last + 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert run.checkpoints()[0] == newest
    assert run.load(backend.shapes(run.experiment))[1:] == (last, [])


def test_only_the_newest_checkpoints_stay(run):
    state = run.load(backend.shapes(run.experiment))[0]
    for iteration in (10, 11, 12):
        run.save(state, iteration)
    assert [int(f.stem) for f in run.checkpoints()] == [12, 11]


def test_a_checkpoint_of_another_shape_is_refused(run):
    other = replace(run.experiment, seeds=3)
    with pytest.raises(UserError, match=r"does not fit .*\[2.* in the checkpoint and .*\[3.* in the code"):
        run.load(backend.shapes(other))


def test_rewinding_drops_later_rows_and_a_torn_line(run):
    with run.metrics_file.open("a") as file:
        file.write("6,3,1,0.5")
    run.rewind(3)
    assert set(run.metrics()["iteration"]) == {1, 2, 3}


@pytest.mark.parametrize("left", ["", "iteration,se", "1,3,1,0.5\r\n2,3,1,0.5\r\n"])
def test_a_log_without_a_header_is_begun_anew(run, left):
    """As a full disk may leave it."""
    run.metrics_file.write_text(left)
    assert run.metrics() == {}
    run.rewind(3)
    run.log([{"iteration": 4, "seed": 3, "return": 0.5}])
    assert run.metrics() == {"iteration": [4], "seed": [3], "return": [0.5]}


@pytest.mark.parametrize("torn", ["6,3", "6,3,1,-", "6,3,1,2e-", "whole"])
def test_a_torn_last_row_is_not_read(run, torn, tmp_path):
    before, text = run.metrics(), run.metrics_file.read_text()
    with run.metrics_file.open("a") as file:
        file.write(text.splitlines()[-1][:-1] if torn == "whole" else torn)  # the last digit is lost, or more
    np.testing.assert_equal(run.metrics(), before)
    np.testing.assert_equal(run.keep(tmp_path / "kept").metrics(), before)


def test_the_first_rows_decide_the_columns(tmp_path, run):
    other = Run.create(tmp_path / "other", run.experiment)
    other.log([{"iteration": 1, "seed": 3, "return": 0.5}])
    other.log([{"iteration": 2, "more": 7, "seed": 3}])
    np.testing.assert_equal(other.metrics(), {"iteration": [1, 2], "seed": [3, 3], "return": [0.5, np.nan]})


def test_killed_after_a_checkpoint_a_run_has_its_row(trained, tmp_path, monkeypatch):
    """Every checkpoint finds its iteration logged, so that no row is missing after a resume."""
    whole, save = Run.open(trained), Run.save

    def killed(run, state, iteration):
        save(run, state, iteration)
        raise KeyboardInterrupt

    monkeypatch.setenv("ETD_SAVE_EVERY", "0")
    monkeypatch.setattr(Run, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        session.train(experiment=whole.experiment, out=tmp_path / "cut", quiet=True)
    monkeypatch.undo()
    np.testing.assert_equal(without_wall(session.resume(tmp_path / "cut", quiet=True)), without_wall(whole))


def test_a_run_is_trained_by_one_process_at_a_time(run):
    files = {file: file.read_bytes() for file in run.path.rglob("*") if file.is_file()}
    with claim(run.path):
        with pytest.raises(UserError, match="being trained by another process"):
            session.resume(run.path, steps=640, quiet=True)
        with pytest.raises(UserError, match="being trained by another process"):
            session.train(experiment=run.experiment, out=run.path, overwrite=True, quiet=True)
    assert files == {file: file.read_bytes() for file in run.path.rglob("*") if file.is_file()}
    session.resume(run.path, quiet=True)  # let go of, it is free


def test_a_directory_that_holds_no_run_is_no_obstacle(tmp_path, run):
    """A process may be killed after it made the directories."""
    (tmp_path / "begun" / "checkpoints").mkdir(parents=True)
    (tmp_path / "begun" / "run.json.part").touch()
    assert Run.create(tmp_path / "begun", run.experiment).experiment == run.experiment
    (tmp_path / "rest").mkdir()
    shutil.copy(run.metrics_file, tmp_path / "rest")
    with pytest.raises(UserError, match="already exists"):
        Run.create(tmp_path / "rest", run.experiment)
    with pytest.raises(UserError, match="a file is in the way"):
        Run.create(tmp_path / "rest" / "metrics.csv", run.experiment)
    with pytest.raises(UserError, match="its name is too long"), claim(tmp_path / ("x" * 300)):
        pass


def test_a_kept_copy_cannot_be_gone_on_with(run, tmp_path):
    kept = run.keep(tmp_path / "kept")
    rows = kept.metrics_file.read_bytes()
    with pytest.raises(UserError, match=r"kept copy.*another --out"):
        session.resume(kept.path, steps=10_000)
    assert kept.metrics_file.read_bytes() == rows
    with pytest.raises(UserError, match="the run itself"):
        run.keep(run.path)
    assert Run.open(kept.path).experiment == run.experiment


def test_an_existing_run_is_refused_unless_told(run):
    with pytest.raises(UserError, match="already exists"):
        Run.create(run.path, run.experiment)
    fresh = Run.create(run.path, run.experiment, overwrite=True)
    assert fresh.checkpoints() == []
    assert fresh.metrics() == {}


def test_what_is_not_a_run(tmp_path, run):
    with pytest.raises(UserError, match="does not exist"):
        Run.open(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"contains no run\.json"):
        Run.open(tmp_path)
    file = run.path / "run.json"
    record = json.loads(file.read_text())
    file.write_text(json.dumps({**record, "format": 999}))
    with pytest.raises(UserError, match="newer etd"):
        Run.open(run.path)
    file.write_text(file.read_text()[:50])
    with pytest.raises(UserError, match="cannot be used: Unterminated string"):
        Run.open(run.path)


def test_a_full_disk_is_said_and_harms_nothing(run, monkeypatch):
    state, last, _ = run.load(backend.shapes(run.experiment))

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(UserError, match=r"the disk is full.*last checkpoint is intact"):
        session._save(run, state, last + 1)
    monkeypatch.undo()
    assert run.load(backend.shapes(run.experiment))[1] == last


@pytest.mark.parametrize(
    ("number", "says"),
    [(errno.ENOSPC, "the disk is full"), (errno.EROFS, "the file system is read-only")],
)
def test_a_run_that_cannot_be_written_is_said_before_it_is_resumed(run, monkeypatch, number, says):
    def refuse(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    for steps in (None, 640):
        with pytest.raises(UserError, match=says):
            session.resume(run.path, steps=steps, quiet=True)


def test_the_record_names_versions_and_device(trained):
    record = json.loads((trained / "run.json").read_text())
    assert record["versions"]["jax"] == jax.__version__
    assert record["device"]["platform"] == jax.default_backend()


def test_a_kept_copy_is_thin_and_ends_where_the_run_ends(logged, tmp_path):
    run = logged(np.arange(400.0).reshape(2, 200))
    kept = run.keep(tmp_path / "kept", points=10)
    again = Run.open(tmp_path / "kept")
    assert again.experiment == run.experiment
    np.testing.assert_array_equal(kept.metrics()["iteration"], np.repeat(np.arange(20, 201, 20), 2))
    np.testing.assert_array_equal(again.metrics()["return"][-2:], [199, 399])
    assert len(logged(np.zeros((1, 3)), "short").keep(tmp_path / "few", points=10).metrics()["step"]) == 3
