"""What `etd bench` measures adds up."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from tests.corridor import HOST, Corridor

from etd.agent.ppo import PPO
from etd.bonuses import NoBonus
from etd.core.errors import UserError
from etd.envs import Task
from etd.lab.bench import against, arithmetic
from etd.lab.bench import host as hostbench
from etd.lab.bench import training as bench
from etd.lab.bench.against import Kept
from etd.training.config import to_dict
from etd.training.experiment import Experiment
from etd.training.migrate import FORMAT


@pytest.mark.slow
def test_a_bonus_costs_more_than_none() -> None:
    result = bench.bonuses("MiniGrid-DoorKey-5x5-v0", ["count", "icm"], repeats=2)
    assert list(result["relative"]) == ["none", "count", "icm"]
    assert result["relative"]["none"] == 1
    assert result["relative"]["icm"] > 1.2
    assert result["iteration_s"]["none"] > 0


def test_arithmetic_is_counted_from_the_program() -> None:
    """2 m k n of a matrix product, times the length of a loop around it; a convolution likewise."""
    a, b = jnp.ones((3, 5)), jnp.ones((5, 7))
    assert arithmetic.flops(jnp.dot, a, b) == 2 * 3 * 5 * 7
    assert arithmetic.flops(lambda a: jax.lax.scan(lambda c, _: (c, jnp.dot(a, b)), 0, None, 4)[1], a) == 4 * 210
    image, kernel = jnp.ones((2, 6, 6, 3)), jnp.ones((2, 2, 3, 8))  # to [2, 5, 5, 8], 2 x 2 x 3 products each

    def convolve(image: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(image, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    assert arithmetic.flops(convolve, image) == 2 * (2 * 5 * 5 * 8) * (2 * 2 * 3)


@pytest.mark.slow
def test_training_is_timed_whole_and_in_parts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each row is printed, in this order, and a kept result of the same training has a ratio beside each."""
    monkeypatch.setattr(arithmetic, "matmul_rate", lambda: 1e9)
    experiment = replace(TINY, env=Task.of(Corridor()), seeds=2)
    phases = ["starts", "acting", "environment", "scoring", "model epochs", "PPO epochs"]
    rows = ["compile", "one iteration", "steps per second", *phases, "the same"]
    kept = Kept(Path("kept.json"), jax.devices()[0].device_kind, experiment, dict.fromkeys(rows, 1e-9))
    result = bench.training(experiment, 1, {"the same": experiment}, kept)
    assert list(result["phases_s"]) == phases
    assert all(result["phases_s"][name] > 0 for name in ("starts", "environment", "scoring", "PPO epochs"))
    assert result["steps_per_s"] == pytest.approx(2 * 4 * 16 / result["iteration_s"])
    assert result["gflop_per_iteration"] > 0
    assert result["fraction_of_matmul"] == pytest.approx(result["gflop_per_s"])
    assert result["variants"]["the same"]["iteration_s"] > 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"tests.corridor:Corridor, none, 2 seeds, float32, {result['device']}"
    assert said[1].startswith("Against kept.json")
    names = [line[:20].strip() for line in said[2:]]
    assert names == [*rows[:3], "memory", *phases, "arithmetic", "the same"]
    assert sum(" x " in line for line in said) >= len(rows) - 1  # acting may take no time beside the environment
    assert "slower" in said[2]
    assert "slower" not in said[4]  # a higher rate


def test_variants_are_every_other_precision_and_the_other_choice_of_deterministic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert bench.variants_of(TINY) == {}  # a CPU has none
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert bench.variants_of(TINY)["deterministic"] == replace(TINY, deterministic=True)
    assert bench.variants_of(TINY)["tensorfloat32"] == replace(TINY, precision="tensorfloat32")
    fixed = replace(TINY, precision="tensorfloat32", deterministic=True)
    assert bench.variants_of(fixed)["not deterministic"] == replace(fixed, deterministic=False)
    assert bench.variants_of(fixed)["float32"] == replace(fixed, precision="float32")
    assert "tensorfloat32" not in bench.variants_of(fixed)


def test_a_result_can_be_compared_with_later(tmp_path: Path) -> None:
    """As the command line writes it."""
    result = dict.fromkeys(("compile_s", "iteration_s", "steps_per_s"), 1.0)
    fields = {"format": FORMAT, "device": "cpu", "experiment": to_dict(TINY), "phases_s": {"acting": 2.0}}
    (tmp_path / "bench.json").write_text(json.dumps({**result, **fields}))
    kept = against.read(tmp_path / "bench.json")
    assert kept.values == {"compile": 1.0, "one iteration": 1.0, "steps per second": 1.0, "acting": 2.0}
    assert against.differences(kept, TINY, "cpu") == []


TINY = Experiment(
    env=Task(HOST), bonus=NoBonus(), ppo=PPO(minibatch=16, epochs=1, features=8, latent=8), num_envs=4, rollout_steps=16
)


@pytest.mark.slow
def test_host_environments_alone_in_a_pool_and_in_training() -> None:
    """All four rates are positive, whole iterations are slower than acting, and acting waits for part of its time."""
    row = hostbench.measure(TINY, repeats=2, seconds=0.2)
    assert min(row[name] for name in ("alone", "pool", "acting", "training")) > 0
    assert row["training"] <= row["acting"]
    assert 0 < row["waiting"] < 1
    assert row["num_envs"] == 4


def test_what_cannot_be_measured_gets_a_sentence() -> None:
    with pytest.raises(UserError, match="does not live on the host"):
        hostbench.measure(replace(TINY, env=Task("MiniGrid-DoorKey-5x5-v0")), repeats=1)
    with pytest.raises(UserError, match="at least 1"):
        hostbench.measure(TINY, repeats=0)
