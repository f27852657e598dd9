"""Every suite of the host: a moment of real training, resumption, evaluation and a film, by the commands users type."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from etd import cli
from etd.envs import families
from etd.lab.film import watch
from etd.lab.runs import evaluate as evaluation
from etd.lab.runs import session
from tests.drawing import can_draw

LONG = ["Crafter-v0", "dmc:cartpole-swingup_sparse", "HalfCheetahVelSparse-v0"]
HEAVY = ["MiniWorld-MazeS3-v0", "metaworld:reach", "gymnasium:CartPole-v1"]
ENVS = [
    pytest.param(env, marks=mark)
    for envs, mark in ((LONG, pytest.mark.slow), (HEAVY, pytest.mark.suites))
    for env in envs
]
SMALL = ["num_envs=2", "rollout_steps=16", "ppo.minibatch=16", "ppo.features=8", "ppo.latent=8", "ppo.epochs=1"]
SMALL += ["bonus.minibatch=16", "bonus.features=8", "bonus.latent=8", "bonus.embedding=8", "bonus.epochs=1"]


@pytest.mark.parametrize("env", ENVS)
def test_from_training_to_film(env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = families.find(env)
    assert suite is not None
    if why := suite.absence():
        pytest.skip(why)
    settings = [argument for assignment in SMALL for argument in ("--set", assignment)]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    cli.main(["train", "--env", env, "--steps", "96", "--out", str(whole), *settings])
    cli.main(["train", "--env", env, "--steps", "32", "--out", str(parts), *settings])
    cli.main(["resume", str(parts), "--steps", "96"])
    one, two = (session.load(path)[0].metrics() for path in (whole, parts))
    assert list(one["step"]) == [32, 64, 96]
    for name in one.keys() - {"wall"}:
        np.testing.assert_array_equal(one[name], two[name], err_msg=name)
    assert one["states"][-1] > 1
    scores = evaluation.evaluate(whole, episodes=2)
    assert 1 <= scores["overall"]["length"] <= session.load(whole)[0].experiment.env.spec.max_steps
    assert ("score" in scores["overall"]) == env.startswith("Crafter")
    record = json.loads((whole / "run.json").read_text())
    assert record["experiment"]["env"]["normalise"] == env.startswith("HalfCheetah")
    if not can_draw(env):
        pytest.skip("there is no OpenGL to draw MuJoCo with")
    monkeypatch.setattr(watch, "FRAMES", 12)  # without a GPU a hundred take ten seconds
    film = tmp_path / "film.gif"
    cli.main(["watch", str(whole), "--out", str(film), "--episodes", "1"])
    with Image.open(film) as pictures:
        assert 1 < getattr(pictures, "n_frames", 1) <= 12
