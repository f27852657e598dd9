"""An environment, a bonus, a trunk and a PPO from outside the package, from the command line, in fresh processes."""

from __future__ import annotations

import csv
import json
import subprocess
import time
from pathlib import Path

import pytest

from tests.outside.conftest import TINY, command, etd, surroundings

PARTS = [
    *("--env", "point_maze:PointMaze", "--set", "env.size=4", "--bonus", "etd_example.bonus:Impact"),
    *("--set", "bonus.scale=2", "--set", "bonus.trunk=etd_example.parts:Plain", "--set", "bonus.trunk.width=6"),
    *("--set", "bonus.minibatch=32", "--set", "bonus.features=8", "--set", "bonus.epochs=1"),
    *("--set", "ppo=etd_example.parts:MyPPO", "--set", "ppo.pull=0.5", "--set", "ppo.trunk=etd_example.parts:Plain"),
    *("--set", "mix=etd_example.parts:HalfMix", *TINY),
]
IMPORTS = ["--import", "point_maze", "--import", "etd_example.bonus", "--import", "etd_example.parts"]


def rows(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open() as file:
        return [{name: value for name, value in row.items() if name != "wall"} for row in csv.DictReader(file)]


@pytest.mark.slow
def test_train_kill_resume_evaluate_watch_report_check_compare(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    etd("train", *PARTS, "--out", "whole", folder=tmp_path)
    record = json.loads((whole / "run.json").read_text())
    experiment = record["experiment"]
    assert experiment["env"]["custom"] == {"class": "point_maze:PointMaze", "size": 4, "slip": 0.1}
    assert experiment["bonus"]["class"] == "etd_example.bonus:Impact"
    assert (experiment["bonus"]["scale"], experiment["bonus"]["trunk"]["width"]) == (2.0, 6)
    assert (experiment["ppo"]["class"], experiment["ppo"]["pull"]) == ("etd_example.parts:MyPPO", 0.5)
    assert experiment["mix"]["class"] == "etd_example.parts:HalfMix"
    assert record["sources"]["etd_example.bonus"]["version"] == "1.2"
    assert {float(row["ppo_pulled"]) for row in rows(whole)} == {0.5}  # what was passed is what was trained

    process = subprocess.Popen(
        command("train", *PARTS, "--out", "killed"),
        cwd=tmp_path,
        env=surroundings(ETD_SAVE_EVERY="0"),
        stdout=subprocess.DEVNULL,
    )
    while not list(killed.glob("checkpoints/*.npz")) and process.poll() is None:
        time.sleep(0.02)
    process.kill()
    process.wait()
    said = etd("resume", "killed", folder=tmp_path, ok=False)
    assert "This run uses point_maze:PointMaze." in said
    assert "`--import point_maze`" in said
    etd("resume", "killed", *IMPORTS, folder=tmp_path)
    assert rows(killed) == rows(whole)

    assert "return" in etd("evaluate", "whole", "--episodes", "4", *IMPORTS, folder=tmp_path)
    etd("watch", "whole", "--episodes", "1", *IMPORTS, folder=tmp_path)
    assert (whole / "episode.gif").read_bytes()[:3] == b"GIF"
    etd("report", "whole", "killed", "--out", "page.html", folder=tmp_path)
    page = (tmp_path / "page.html").read_text()
    assert "--bonus etd_example.bonus:Impact" in page
    assert "--set env.size=4" in page
    assert "--set ppo=etd_example.parts:MyPPO" in page


@pytest.mark.slow
def test_check_and_compare(tmp_path: Path) -> None:
    small = ["--set", "bonus.minibatch=32", "--set", "bonus.epochs=1", "--set", "bonus.features=8", *TINY]
    said = etd("check", *PARTS[:6], *small, folder=tmp_path)
    assert "the same seed and actions give the same episodes" in said
    assert "the model's loss" in said
    pairs = ["--env", "point_maze:PointMaze", "--bonus", "none", "--bonus", "etd_example.bonus:Impact"]
    said = etd("compare", *pairs, *small, "--seeds", "1", "--steps", "64", "--out", "both", folder=tmp_path)
    assert (tmp_path / "both" / "compare.html").is_file()
    assert "etd_example.bonus:Impact" in said


def test_a_module_of_the_working_directory_is_found(tmp_path: Path) -> None:
    """Also by the console script, whose own folder is what Python puts first on its path."""
    (tmp_path / "written.py").write_text(
        "import gymnasium\n"
        "from etd_example.host import Walk\n"
        "gymnasium.register('Written-v0', Walk, max_episode_steps=9)\n"
    )
    words = [*TINY, "--bonus", "none", "--steps", "64"]
    etd("train", "--env", "gymnasium:written:Written-v0", *words, "--out", "one", folder=tmp_path)
    said = etd("resume", "one", "--steps", "128", folder=tmp_path, ok=False)
    assert "registered by written" in said
    etd("resume", "one", "--steps", "128", "--import", "written", folder=tmp_path)


@pytest.mark.slow
def test_what_a_script_defines_can_be_resumed_by_that_script_alone(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "from dataclasses import dataclass\n"
        "import etd\n"
        "@dataclass(frozen=True)\n"
        "class Loud(etd.PPO):\n"
        "    def loss(self, net, batch, key):\n"
        "        loss, metrics = super().loss(net, batch, key)\n"
        "        return loss, {**metrics, 'loud': loss * 0 + 3}\n"
        "if __name__ == '__main__':\n"
        "    small = dict(minibatch=32, features=8, latent=8, epochs=1, norm='none')\n"
        "    how = dict(num_envs=4, rollout_steps=16, out='run')\n"
        "    run = etd.train('Maze-Spiral-v0', 'none', ppo=Loud(**small), steps=64, **how)\n"
        "    run = etd.resume('run', steps=128, quiet=True)\n"
        "    print(set(run.metrics()['ppo_loud'].tolist()), len(run.metrics()['step']))\n"
    )
    python = command()[0].replace("/etd", "/python")
    result = subprocess.run([python, "script.py"], cwd=tmp_path, env=surroundings(), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "Only this process can resume this run: ppo is __main__:Loud" in result.stdout
    assert "{3.0} 2" in result.stdout
    said = etd("resume", "run", "--steps", "192", folder=tmp_path, ok=False)
    assert "only by the process that started it" in said
    etd("report", "run", folder=tmp_path)
