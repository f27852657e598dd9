"""Nothing is destroyed by a mistake, nothing outside a run is written, nothing from a run's folder is executed."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import numpy as np
import pytest

from etd.agent.ppo import PPO
from etd.cli import main
from etd.core import files
from etd.core.errors import UserError
from etd.lab.report.write import write
from etd.lab.runs import lock, programs, session
from etd.lab.runs.store import Run


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Run:
    """A copy of a real run that may be broken."""
    shutil.copytree(trained, tmp_path / "run")
    return Run.open(tmp_path / "run")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


# Replacing a run -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Raising(PPO):
    """Fails when it is compiled."""

    def loss(self, net, batch, key):
        raise RuntimeError("no loss today")


def test_a_run_that_cannot_start_leaves_the_one_it_was_to_replace(run):
    before = contents(run.path)
    shared = {name: getattr(run.experiment.ppo, name) for name in ("minibatch", "features", "latent", "epochs")}
    broken = replace(run.experiment, ppo=Raising(**shared))
    with pytest.raises(RuntimeError, match="no loss today"):
        session.train(experiment=broken, out=run.path, overwrite=True, quiet=True)
    assert contents(run.path) == before


def test_a_mistyped_sink_is_refused_before_anything_is_replaced(run):
    before = contents(run.path)
    with pytest.raises(UserError, match="Did you mean 'wandb'"):
        session.train(experiment=run.experiment, out=run.path, overwrite=True, sinks=("wandbb",), quiet=True)
    assert contents(run.path) == before


def test_the_old_run_goes_with_the_new_ones_first_checkpoint(run):
    shorter = replace(run.experiment, steps=64)
    done = session.train(experiment=shorter, out=run.path, overwrite=True, quiet=True)
    assert not done.aside.exists()
    assert [file.stem for file in done.checkpoints()] == ["0000001"]


def test_a_second_attempt_keeps_the_run_that_has_checkpoints(run):
    """The first attempt was killed before its first checkpoint."""
    old = contents(run.path)
    Run.create(run.path, run.experiment, overwrite=True)
    again = Run.create(run.path, run.experiment, overwrite=True)
    assert contents(again.aside) == old
    again.put_back()
    assert contents(run.path) == old


@pytest.mark.parametrize("steps", [300.5, True, "many", -3, 0])
def test_an_impossible_end_is_refused_before_it_is_written(run, steps):
    before = contents(run.path)
    with pytest.raises(UserError):
        session.resume(run.path, steps=steps, quiet=True)
    assert contents(run.path) == before


def test_an_impossible_interval_of_saving_is_said(run, monkeypatch):
    monkeypatch.setenv("ETD_SAVE_EVERY", "abc")
    with pytest.raises(UserError, match="ETD_SAVE_EVERY is 'abc'"):
        session.resume(run.path, steps=640, quiet=True)


def test_what_a_killed_process_was_writing_goes_when_the_run_goes_on(run):
    for name in (".run.json.abc.json", ".metrics.csv.abc.csv", "checkpoints/.0000005.npz.abc.npz"):
        (run.path / name).write_bytes(b"half")
    session.resume(run.path, quiet=True)
    assert not [name for name in contents(run.path) if Path(name).name.startswith(".")]


# Links and other files -------------------------------------------------------------------------------------------


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    file = tmp_path / "outside.txt"
    file.write_text("mine")
    return file


def test_a_link_is_replaced_and_never_followed(run, outside):
    for name in ("report.html", "report-curves.png", "report-curves.svg", "run.json.part"):
        (run.path / name).unlink(missing_ok=True)
        (run.path / name).symlink_to(outside)
    write([run.path], run.path / "report.html")
    session.resume(run.path, steps=384, quiet=True)
    assert outside.read_text() == "mine"
    assert not (run.path / "report.html").is_symlink()


def test_a_run_whose_files_are_links_is_not_written_to(run, outside):
    run.metrics_file.unlink()
    run.metrics_file.symlink_to(outside)
    with pytest.raises(UserError, match="is a symbolic link"):
        run.log([{"iteration": 1, "seed": 3}])
    checkpoints = run.path / "checkpoints"
    checkpoints.rename(run.path / "elsewhere")
    checkpoints.symlink_to(run.path / "elsewhere")
    with pytest.raises(UserError, match="is a symbolic link"):
        run.save({}, 99)
    assert outside.read_text() == "mine"


@pytest.mark.parametrize("name", ["run.json", "metrics.csv", "checkpoints/0000005.npz"])
def test_out_never_overwrites_a_part_of_a_run(run, name, capsys):
    before = contents(run.path)
    with pytest.raises(SystemExit) as stop:
        main(["report", str(run.path), "--out", str(run.path / name)])
    assert stop.value.code == 2
    assert "is part of a run" in capsys.readouterr().err
    assert contents(run.path) == before


def test_a_file_that_cannot_be_written_whole_is_not_written_at_all(tmp_path):
    file = tmp_path / "file.txt"
    files.write(file, "old")

    def fail() -> None:
        with files.replacing(file) as part:
            part.write_text("ha")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


# Locks -----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix", reason="locks of POSIX")
def test_a_file_is_locked_where_folders_cannot_be(tmp_path, monkeypatch):
    """As on NFS, which locks only what is open for writing."""
    real = lock.fcntl.flock

    def files_only(handle: int, how: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EBADF, "Bad file descriptor")
        real(handle, how)

    monkeypatch.setattr(lock.fcntl, "flock", files_only)
    with lock.claim(tmp_path / "run") as news:
        assert news == []
        with pytest.raises(UserError, match="being trained by another process"), lock.claim(tmp_path / "run"):
            pass
    with lock.claim(tmp_path / "run"):
        pass  # let go of, it is free
    (tmp_path / "run" / lock.FILE).unlink()
    (tmp_path / "run" / lock.FILE).symlink_to(tmp_path / "outside")
    with lock.claim(tmp_path / "run") as news:
        assert news == [f"{tmp_path / 'run'} could not be locked here: do not train it in two processes at once."]
    assert not (tmp_path / "outside").exists()


def test_a_run_without_a_lock_is_trained_and_the_user_told(run, monkeypatch, capsys):
    """As on Windows."""
    monkeypatch.setattr(lock, "fcntl", None)
    session.resume(run.path, steps=384)
    assert "could not be locked here" in capsys.readouterr().out


# Compiled programs -----------------------------------------------------------------------------------------------


def test_programs_are_neither_read_from_a_run_nor_kept_in_it(run, tmp_path, monkeypatch):
    monkeypatch.setenv("ETD_CACHE", str(tmp_path / "cache"))
    (run.path / "compiled").mkdir()
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    try:
        with programs.cached():
            assert jax.config.jax_compilation_cache_dir == str(tmp_path / "cache")
        assert jax.config.jax_compilation_cache_dir is None
    finally:
        programs._configure({"jax_compilation_cache_dir": before})
    session.resume(run.path, steps=384, quiet=True)  # the user's own setting goes before ours
    assert jax.config.jax_compilation_cache_dir == before
    assert list((run.path / "compiled").iterdir()) == []


@pytest.mark.parametrize("left", [0, 100, -1])
def test_a_broken_program_is_replaced_without_a_word(tmp_path, monkeypatch, left):
    """As a process leaves it that is killed while it writes; -1 is a byte too few."""
    monkeypatch.setenv("ETD_CACHE", str(tmp_path / "cache"))
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)

    def run() -> Path:
        """In a process of its own, as far as JAX knows: the function is another one, of the same program."""

        def double_the_sum(x):
            return 2 * x.sum()

        with programs.cached(), warnings.catch_warnings():
            warnings.simplefilter("error")
            assert jax.jit(double_the_sum)(np.ones(7, np.float32)) == 14
        (entry,) = (tmp_path / "cache").glob("jit_double_the_sum-*")
        return entry

    try:
        whole = run().stat().st_size
        entry = run()
        entry.write_bytes(entry.read_bytes()[:left])
        assert run() == entry
        assert entry.stat().st_size >= whole - 50  # the time it took to compile is part of it
        written = entry.read_bytes()
        run()
        assert entry.read_bytes() == written
    finally:
        programs._configure({"jax_compilation_cache_dir": before})


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_a_cache_that_others_may_write_to_is_not_used(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    assert not programs._private(shared)
    assert programs._private(tmp_path / "own")
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").touch()
    assert not programs._private(tmp_path / "file" / "below")


def test_the_least_used_programs_are_deleted_first(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "LIMIT", 250)
    for age, name in enumerate(("new", "older", "oldest")):
        (tmp_path / name).write_bytes(b"x" * 100)
        os.utime(tmp_path / name, (1e9 - age, 1e9))
    programs._prune(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"new", "older"}
