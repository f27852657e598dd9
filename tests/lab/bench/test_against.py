"""A kept result of `etd bench training` is read whoever wrote it, and compared only with what is like it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from etd.core.errors import UserError
from etd.lab.bench import against
from etd.training import presets

KEPT = Path(__file__).resolve().parents[3] / "results" / "speed" / "h200-training-1-seed.json"


def test_results_kept_by_older_versions_are_compared_under_todays_names() -> None:
    kept = against.read(KEPT)
    assert kept.values["one iteration"] == pytest.approx(0.1316, abs=1e-4)
    assert kept.values["PPO epochs"] == pytest.approx(0.0383, abs=1e-4)
    same = presets.choose("MiniGrid-DoorKey-8x8-v0", "etd")
    assert against.differences(kept, replace(same, seed=5, steps=10), "NVIDIA H200") == []
    assert against.heading(kept, []).startswith(f"Against {KEPT}, the same training")


@pytest.mark.parametrize(
    ("fields", "device", "words"),
    [
        ({}, "cpu", "the device is cpu, not NVIDIA H200"),
        ({"seeds": 4}, "NVIDIA H200", "seeds is 4, not 1"),
        ({"precision": "tensorfloat32"}, "NVIDIA H200", "precision is tensorfloat32, not float32"),
        (
            {"env": "MiniGrid-DoorKey-5x5-v0"},
            "NVIDIA H200",
            "env.id is MiniGrid-DoorKey-5x5-v0, not MiniGrid-Do",
        ),
        ({"bonus": "rnd"}, "NVIDIA H200", "bonus.class is rnd, not etd"),
    ],
)
def test_what_is_not_comparable_is_said(fields: dict[str, Any], device: str, words: str) -> None:
    kept = against.read(KEPT)
    experiment = replace(presets.choose("MiniGrid-DoorKey-8x8-v0", "etd"), **fields)
    found = against.differences(kept, experiment, device)
    assert any(one.startswith(words) for one in found)
    assert against.heading(kept, found).startswith(f"Not comparable with {KEPT}: ")
    assert len(against.heading(kept, found * 10)) < 1000


def test_a_slowdown_is_noticed_in_rates_as_in_times() -> None:
    kept = against.read(KEPT)._replace(values={"compile": 10.0, "steps per second": 1000.0, "acting": 0.0})
    assert against.ratio(kept, "compile", 12.0, str) == ("1.20 x 10.0", True)
    assert against.ratio(kept, "compile", 8.0, str) == ("0.80 x 10.0", False)
    assert against.ratio(kept, "steps per second", 800.0, str) == ("0.80 x 1000.0", True)
    assert against.ratio(kept, "steps per second", 1200.0, str) == ("1.20 x 1000.0", False)
    assert against.ratio(kept, "acting", 1.0, str) == ("", False)
    assert against.ratio(kept, "deterministic", 1.0, str) == ("", False)


def changed(**fields: Any) -> str:
    return json.dumps({**json.loads(KEPT.read_text()), **fields})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Expecting value"),
        ("[1, 2]", "not a group of fields"),
        ("[" * 2000 + "]" * 2000, "nested too deeply"),
        ("{}", "it has no device"),
        ('{"env": "MiniGrid-DoorKey-8x8-v0", "device": "cpu", "speeds": []}', "it has no experiment"),
        (changed(experiment={}), "no experiment with an environment and a bonus"),
        (changed(experiment=3), "no experiment with an environment and a bonus"),
        (changed(experiment={"env": {"id": "x"}, "bonus": 7}), "bonus should be a group of fields"),
        (changed(device=["cpu"]), "its device should be a string"),
        (changed(compile_s="soon"), "'compile' should be a number"),
        (changed(iteration_s=float("nan")), "'one iteration' should be a number"),
        (changed(steps_per_s=True), "'steps per second' should be a number"),
        (changed(phases_s={"acting": -1}), "'acting' should be a number"),
        (changed(phases_s=[1.0]), "is not a result of `etd bench training`"),
        (changed(variants=[1.0]), "is not a result of `etd bench training`"),
        (changed(variants={"deterministic": 1.0}), "is not a result of `etd bench training`"),
    ],
)
def test_another_file_is_refused_in_a_sentence(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "kept.json"
    file.write_text(text)
    with pytest.raises(
        UserError, match=r"kept\.json is not a result of `etd bench training`: .*Name a file"
    ) as refused:
        against.read(file)
    assert why in str(refused.value)
    assert len(str(refused.value)) < 600
    assert "\n" not in str(refused.value)


def test_a_file_that_cannot_be_read_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing\.json cannot be read: it does not exist"):
        against.read(tmp_path / "nothing.json")
    with pytest.raises(UserError, match="is a folder"):
        against.read(tmp_path)
