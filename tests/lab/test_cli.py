"""The command line, in this process and, for signals, in one of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from threading import Thread

import jax
import numpy as np
import pytest

from etd.cli import BENCHMARKS, COMMANDS, main
from etd.core.errors import UserError
from etd.lab.runs import session
from etd.lab.runs.store import Run
from tests.conftest import QUICK_VARIABLES
from tests.lab.conftest import SMALL, small_experiment


def refused(capsys, *args):
    """The sentence that a mistaken command prints."""
    with pytest.raises(SystemExit) as stop:
        main(list(args))
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return said


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_short_and_has_examples(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert f"etd {command}" in text.split("For example:")[1]
    assert len(text.splitlines()) < 50


@pytest.mark.parametrize(("words", "commands"), [([], COMMANDS), (["bench"], BENCHMARKS)])
def test_help_lists_every_command_with_what_it_does(words, commands, capsys):
    with pytest.raises(SystemExit) as stop:
        main([*words, "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    for name, command in commands.items():
        assert f" {name} " in text
        assert " ".join(command.__doc__.split()[:3]) in text
    assert len(text.splitlines()) < 50


def test_list_fits_on_a_screen(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    main(["list"])
    text = capsys.readouterr().out
    for name in ("MiniGrid-Empty-5x5-v0", "Crafter-v0", "dmc:...", "etd", "none", "noveld", "lstm"):
        assert name in text
    for what in ("environments", "bonuses", "cells", "presets", "figures"):
        assert what in text.splitlines()[-3]
    assert len(text.splitlines()) <= 24


@pytest.mark.parametrize(
    ("what", "name"),
    [("environments", "MiniGrid-Empty-5x5-v0"), ("presets", "minigrid-etd"), ("figures", "minigrid"), ("cells", "gru")],
)
def test_list_names_everything_when_asked(capsys, what, name):
    main(["list", what])
    assert name in capsys.readouterr().out


def test_show_prints_the_resolved_preset(capsys):
    main(["show", "minigrid-etd", "--set", "bonus.learning_rate=1e-4", "--set", "ppo.norm=layer"])
    text = capsys.readouterr().out
    assert '"learning_rate": 0.0001' in text
    assert '"norm": "layer"' in text


def test_mistakes_get_a_sentence(capsys, tmp_path, trained):
    assert "Did you mean 'MiniGrid-DoorKey-8x8-v0'" in refused(capsys, "train", "--env", "MiniGrid-DorKey-8x8-v0")
    assert "Did you mean 'etd'" in refused(capsys, "train", "--bonus", "edt")
    assert "Did you mean 'minigrid-etd'" in refused(capsys, "train", "--preset", "minigrid-edt")
    assert "Did you mean 'learning_rate'" in refused(capsys, "train", "--set", "bonus.lerning_rate=3")
    assert "is not a run" in refused(capsys, "resume", str(tmp_path))
    assert "already exists" in refused(capsys, "train", "--out", str(trained))
    assert "Did you mean 'bonuses'?" in refused(capsys, "list", "bonus")
    assert "at least one run" in refused(capsys, "report")


def test_a_missing_extra_names_its_pip_command(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    small = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
    small += ["--set", "num_envs=4", "--set", "rollout_steps=16", "--steps", "64", "--out", str(tmp_path / "run")]
    said = refused(capsys, "train", "--env", "MiniGrid-Empty-5x5-v0", *small, "--log", "tensorboard")
    assert "pip install 'etd[tensorboard]'" in said


def start(path, steps, **environment):
    """``etd train`` of the experiment of ``trained``, in its own process."""
    words = ["--env", "MiniGrid-Empty-5x5-v0", "--steps", str(steps), "--out", str(path)]
    words += [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
    words += ["--set", "num_envs=4", "--set", "rollout_steps=16", "--seed", "3", "--seeds", "2"]
    cache = {"JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir}
    return command("train", *words, **{**cache, **QUICK_VARIABLES, **environment})


def command(*words, **environment):
    """``etd``, in its own process."""
    return subprocess.Popen(
        [sys.executable, "-m", "etd", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **environment},
    )


def finish(process):
    assert process.wait(timeout=300) == 0, process.stdout.read().decode()


@pytest.mark.slow
def test_compiled_programs_are_kept_for_the_user_and_continue_exactly(tmp_path):
    """On any device: both runs use the program that the first one compiled, and the second is stopped half-way."""
    cache = tmp_path / "cache"
    plain = {"JAX_COMPILATION_CACHE_DIR": "", "ETD_CACHE": str(cache)}
    plain |= {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0", "XLA_FLAGS": os.environ.get("XLA_FLAGS", "")}
    whole, halved = tmp_path / "whole", tmp_path / "halved"
    finish(start(whole, 4 * 64, **plain))
    programs = {file.name for file in cache.iterdir()}
    assert any("jit_run" in name for name in programs)
    assert not (whole / "compiled").exists()
    finish(start(halved, 2 * 64, **plain))
    finish(command("resume", str(halved), "--steps", str(4 * 64), **plain))
    assert {file.name for file in cache.iterdir()} == programs
    expected, found = Run.open(whole).metrics(), Run.open(halved).metrics()
    for name in expected.keys() - {"wall"}:
        np.testing.assert_array_equal(found[name], expected[name], name)


def wait_for_rows(path, count):
    """Until the run has logged that many rows."""
    for _ in range(1200):
        if (path / "metrics.csv").exists() and len((path / "metrics.csv").read_text().splitlines()) > count:
            return
        time.sleep(0.1)
    raise AssertionError("the run never began")


@pytest.mark.slow
def test_a_killed_run_resumes(tmp_path, capsys):
    """Killed before its first checkpoint, it starts over; rows of the lost iterations are written anew."""
    path = tmp_path / "run"
    process = start(path, 10_000_000)
    wait_for_rows(path, 3)
    process.kill()
    process.communicate(timeout=60)
    run = session.resume(path, steps=2 * 64)
    assert f"{path} has no checkpoint and starts over." in capsys.readouterr().out
    assert run.metrics()["iteration"].tolist() == [1, 1, 2, 2]
    assert int(run.checkpoints()[0].stem) == 2


def test_sigterm_saves_and_prints_how_to_resume(tmp_path):
    path = tmp_path / "run"
    process = start(path, 10_000_000)
    wait_for_rows(path, 3)
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=60)[0].decode()
    assert process.returncode == 128 + signal.SIGTERM
    told = re.search(r"Stopped after ([\d,]+) of 10,000,000 steps \(0%\) and saved. Continue with: (.*)\n", output)
    assert told[2] == f"etd resume {path}"
    run = Run.open(path)
    assert int(told[1].replace(",", "")) == np.max(run.metrics()["step"])
    assert int(run.checkpoints()[0].stem) == np.max(run.metrics()["iteration"])


def test_a_run_that_ends_early_says_why_and_how_to_go_on(tmp_path, capsys):
    experiment, path = small_experiment(steps=64 * 1000), tmp_path / "my run"
    session.train(experiment=experiment, out=path, until=-1.0)
    (done,) = set(Run.open(path).metrics()["step"][-1:])
    far = f"stopped after {done:,.0f} of 64,000 steps ({done / 64_000:.0%}) and saved"
    said = capsys.readouterr().out
    assert f"Every seed's return has reached -1: {far}. Continue with: etd resume '{path}'" in said
    assert Run.open(path).asked["until"] == -1.0

    session.resume(path, deadline=time.time())
    assert f"The time is up: {far}." in capsys.readouterr().out
    assert "until" not in Run.open(path).asked

    session.resume(path, steps=int(done))
    assert capsys.readouterr().out == f"All {done:,.0f} steps are done. Ask for more with --steps.\n"


def test_names_do_not_steer_the_terminal(capsys, tmp_path, trained):
    """An escape sequence that clears the screen is shown as text, wherever it comes from."""
    evil = "a\x1b[2Jb\rc"
    for words in (["train", "--env", evil], ["resume", evil], ["show", evil], ["evaluate", str(tmp_path / evil)]):
        said = refused(capsys, *words)
        assert "\x1b" not in said
        assert "\r" not in said
    page = tmp_path / f"{evil}.html"
    main(["report", str(trained), "--out", str(page)])
    assert "a\\x1b[2Jb\\rc.html" in capsys.readouterr().out
    assert page.exists()
    assert str(UserError(f"The environment said {evil!s}.")) == "The environment said a\\x1b[2Jb\\rc."


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_a_comparison_that_a_signal_stops_ends_with_its_status(tmp_path, trained, number, status):
    """The run is the one of ``trained``, which is compiled already."""
    words = ["compare", "--env", "MiniGrid-Empty-5x5-v0", "--bonus", "etd", "--seeds", "2", "--out", str(tmp_path)]
    fields = {**SMALL, "num_envs": 4, "rollout_steps": 16, "seed": 3}
    words += [word for name, value in fields.items() for word in ("--set", f"{name}={value}")]

    def ask():
        wait_for_rows(tmp_path / "MiniGrid-Empty-5x5-v0" / "etd", 3)
        os.kill(os.getpid(), number)

    asker = Thread(target=ask)
    asker.start()
    with pytest.raises(SystemExit) as stop:
        main([*words, "--steps", "10_000_000"])
    asker.join()
    assert stop.value.code == status
    assert (tmp_path / "compare.html").is_file()
