"""Objects all the way: what is passed is what is trained."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etd as package
from etd.training.config import from_dict, to_dict
from tests.outside.conftest import PPO, SIZES

NO_MODEL = {**PPO, "steps": 64}


def outside(name: str) -> Any:
    module, _, thing = name.partition(":")
    return getattr(importlib.import_module(module), thing)


def train(out: Path, *args: Any, fields: dict[str, Any] | None = None, **keywords: Any) -> package.Run:
    sizes = {name: value for name, value in SIZES.items() if name not in keywords}
    return package.train(*args, **keywords, out=out, quiet=True, fields={**sizes, **NO_MODEL, **(fields or {})})


def test_a_device_environment_is_trained_and_resumed(tmp_path: Path) -> None:
    """etd.train(PointMaze()) ended in an AttributeError; only patching the package's registry worked."""
    maze = outside("point_maze:PointMaze")(size=4)
    run = train(tmp_path / "run", maze, "none", steps=64)
    assert run.experiment.env.custom == maze
    whole = train(tmp_path / "whole", maze, "none", fields={"steps": 128})
    resumed = package.resume(tmp_path / "run", steps=128, quiet=True)
    for name, column in whole.metrics().items():
        if name != "wall":
            np.testing.assert_array_equal(resumed.metrics()[name], column)


@pytest.mark.slow
def test_a_task_that_makes_its_own_environment_is_trained(tmp_path: Path) -> None:
    """It ended in "There is no environment"."""
    maze = outside("point_maze:PointMaze")

    @dataclass(frozen=True)
    class Mine(package.Task):
        size: int = 3

        def make(self) -> Any:
            return maze(self.size)

    run = train(tmp_path / "run", experiment=package.Experiment(env=Mine(size=5), bonus="none"))
    assert run.experiment.env.make().size == 5
    assert run.metrics()["step"].tolist() == [64]


def test_a_subclass_of_ppo_is_what_is_trained(tmp_path: Path) -> None:
    """It was silently replaced by PPO: a loss that raises trained to the end."""
    with pytest.raises(RuntimeError, match="my own loss was called"):
        train(
            tmp_path / "raises", outside("point_maze:PointMaze")(), "none", ppo=outside("etd_example.parts:RaisingPPO")
        )
    mine = outside("etd_example.parts:MyPPO")(pull=0.25)
    run = train(tmp_path / "run", outside("point_maze:PointMaze")(), "none", ppo=mine)
    assert set(run.metrics()["ppo_pulled"]) == {0.25}
    assert isinstance(package.Run.open(run.path).experiment.ppo, type(mine))


def test_a_subclass_of_mix_is_what_is_trained() -> None:
    half = outside("etd_example.parts:HalfMix")
    experiment = package.Experiment(mix=half(extrinsic=3.0))
    again = from_dict(json.loads(json.dumps(to_dict(experiment))))
    assert again == experiment
    assert type(again.mix) is half


def test_a_class_takes_the_presets_settings_but_for_what_it_declares() -> None:
    @dataclass(frozen=True)
    class Greedy(package.PPO):
        entropy_coef: float = 0.0

    run = importlib.import_module("etd.training.config").assign(package.PRESETS["obstructedmaze-etd"], "ppo", Greedy)
    assert (run.ppo.entropy_coef, run.ppo.norm) == (0.0, "layer")
    impact = outside("etd_example.bonus:Impact")
    chosen = importlib.import_module("etd.training.presets").choose("MiniGrid-ObstructedMaze-2Dlh-v0", impact)
    assert (chosen.bonus.epochs, chosen.bonus.norm, chosen.mix.extrinsic) == (4, "layer", 10.0)


@pytest.mark.slow
def test_a_bonus_that_nobody_registered_is_trained_and_opened_again(tmp_path: Path) -> None:
    """It ended in a bare StopIteration, and lived only in the process that had put it into BONUSES."""
    impact = outside("etd_example.bonus:Impact")(minibatch=32, features=8, epochs=1, norm="none")
    run = train(tmp_path / "run", outside("point_maze:PointMaze")(), impact)
    assert package.Run.open(run.path).experiment.bonus == impact
    assert run.metrics()["bonus_mean"][-1] > 0


def test_a_mixture_may_have_parts_from_outside() -> None:
    chosen = importlib.import_module("etd.training.presets").choose(
        "MiniGrid-DoorKey-8x8-v0", "etd + 0.5*etd_example.bonus:Impact"
    )
    again = from_dict(json.loads(json.dumps(to_dict(chosen))))
    assert again == chosen
    assert importlib.import_module("etd.training.config").bonus_name(again.bonus) == (
        "etd + 0.5*etd_example.bonus:Impact"
    )


FUNCTION = pytest.param("etd_example.host:make_walk", marks=pytest.mark.slow)


@pytest.mark.parametrize("name", ["etd_example.host:Walk", FUNCTION])
def test_a_gymnasium_class_or_function_is_trained(tmp_path: Path, name: str) -> None:
    run = train(tmp_path / "run", outside(name), "none", num_envs=2, fields={"env.length": 5, "steps": 32})
    assert run.record["experiment"]["env"]["custom"] == {"class": name, "length": 5}
    again = package.Run.open(run.path)
    assert again.experiment == run.experiment
    assert package.resume(run.path, steps=64, quiet=True).metrics()["step"].tolist() == [32, 64]


def test_what_has_no_name_trains_and_only_this_process_resumes(tmp_path: Path, capsys: Any) -> None:
    walk = outside("etd_example.host:Walk")
    fields = {**SIZES, **NO_MODEL, "num_envs": 2, "steps": 32}
    package.train(lambda: walk(5), "none", out=tmp_path / "run", fields=fields)
    assert "Only this process can resume this run: env.custom is" in capsys.readouterr().out
    assert len(package.resume(tmp_path / "run", steps=64, quiet=True).metrics()["step"]) == 2


@pytest.mark.slow
def test_a_changed_network_is_not_called_damage(tmp_path: Path) -> None:
    """A sound checkpoint was called damaged, with the advice to overwrite it."""
    plain = outside("etd_example.parts:Plain")
    run = train(tmp_path / "run", outside("point_maze:PointMaze")(), "none", fields={"ppo.trunk": plain(width=6)})
    files = {file: file.read_bytes() for file in (tmp_path / "run").rglob("*.npz")}
    record = json.loads((run.path / "run.json").read_text())
    record["experiment"]["ppo"]["trunk"]["width"] = 7
    (run.path / "run.json").write_text(json.dumps(record))
    with pytest.raises(package.UserError, match=r"is intact but does not fit .*first.* The run is untouched") as caught:
        package.resume(run.path, steps=128, quiet=True)
    assert "overwrite" not in str(caught.value)
    assert files == {file: file.read_bytes() for file in (tmp_path / "run").rglob("*.npz")}


def test_two_things_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = importlib.import_module("etd.core.plugins")
    point = importlib.import_module("importlib.metadata").EntryPoint
    offered = (point("impact", "etd_example.bonus:Impact", plugins.GROUP),)
    monkeypatch.setattr(plugins, "_points", lambda: offered)
    bonuses = importlib.import_module("etd.bonuses")
    assert bonuses.find("impact") is outside("etd_example.bonus:Impact")
    monkeypatch.setattr(plugins, "_points", lambda: (*offered, point("impact", "other:Impact", plugins.GROUP)))
    with pytest.raises(package.UserError, match="Two installed packages use the name 'impact'"):
        bonuses.find("impact")
    monkeypatch.setattr(plugins, "_points", lambda: (point("etd", "etd_example.bonus:Impact", plugins.GROUP),))
    with pytest.raises(package.UserError, match="The name 'etd' is ambiguous"):
        bonuses.find("etd")
    assert replace(package.Experiment(bonus="count"), steps=1).bonus == package.BONUSES["count"]()
