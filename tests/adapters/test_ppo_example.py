"""examples/ppo_etd.py: in each autoreset mode, the explorer is told what happened and nothing else."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import etd

pytestmark = pytest.mark.suites

NAME, LIMIT, ENVS, STEPS = "tests/Corridor-v0", 9, 4, 128
MODES = ("next_step", "same_step", "disabled")


class Corridor(gymnasium.Env):
    """A line with an end at place 3; every observation of an episode is another."""

    observation_space = spaces.Box(-20, 20, (2,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        self.place, self.time = 0, 0
        return self.look(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.place, self.time = self.place + 2 * int(action) - 1, self.time + 1
        return self.look(), float(self.place == 3), self.place == 3, self.time == LIMIT, {}

    def look(self) -> np.ndarray:
        return np.array([self.place, self.time], np.float32)


@pytest.fixture(scope="module")
def example(examples: Path) -> Iterator[ModuleType]:
    pytest.importorskip("torch")
    gymnasium.register(NAME, Corridor)
    yield importlib.import_module("ppo_etd")
    gymnasium.registry.pop(NAME)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, np.ndarray]]:
    """The arguments of every call of ``reward``."""
    kept: list[dict[str, np.ndarray]] = []
    reward = etd.Explorer.reward

    def listen(self: etd.Explorer, **arguments: Any) -> np.ndarray:
        kept.append({name: np.array(value) for name, value in arguments.items()})
        return reward(self, **arguments)

    monkeypatch.setattr(etd.Explorer, "reward", listen)
    return kept


def args(example: ModuleType, mode: str, **more: Any) -> Any:
    fields = {"env": NAME, "max_steps": LIMIT, "num_envs": ENVS, "rollout_steps": STEPS, "device": "cpu", "epochs": 1}
    return example.Args(autoreset=mode, **{**fields, "total_steps": 2 * ENVS * STEPS, **more})


@pytest.mark.parametrize("mode", MODES)
def test_the_explorer_is_told_what_happened(example, told, mode):
    example.train(args(example, mode, bonus="count"))
    assert len(told) == 2
    whole = {name: np.concatenate([one[name] for one in told]) for name in told[0]}
    assert whole["terminated"].any()
    assert whole["truncated"].any()
    assert whole["mask"].all() == (mode != "next_step")
    for env in range(ENVS):
        real = {name: value[whole["mask"][:, env], env] for name, value in whole.items()}
        walk = Corridor()
        obs, _ = walk.reset()
        for step, action in enumerate(real["action"]):
            np.testing.assert_array_equal(real["obs"][step], obs)
            obs, reward, terminated, truncated, _ = walk.step(action)
            np.testing.assert_array_equal(real["next_obs"][step], obs)
            ends = real["terminated"][step], real["truncated"][step]
            assert (real["extrinsic"][step], *ends) == (reward, terminated, truncated)
            if terminated or truncated:
                obs, _ = walk.reset()


def test_resetting_at_once_and_by_hand_is_the_same(example, told):
    """With next_step, the policy also acts in the steps that did not happen, and draws other random numbers."""
    agents = [example.train(args(example, mode)) for mode in ("same_step", "disabled")]
    for one, other in zip(told[:2], told[2:], strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])
    for one, other in zip(*(agent.parameters() for agent in agents), strict=True):
        np.testing.assert_array_equal(one.detach(), other.detach())


@pytest.mark.parametrize("mode", MODES)
def test_advantages_end_with_the_episode(example, mode):
    """Against sums of rewards, where values are those of the states and no others."""
    torch = pytest.importorskip("torch")
    settings = args(example, mode, gamma=0.9, gae_lambda=1.0)
    stepper = example.Stepper(example.make_envs(settings), seed=0)
    draw = np.random.default_rng(0)
    steps = [stepper.step(draw.integers(0, 2, ENVS)) for _ in range(40)]
    rollout = {name: torch.as_tensor(np.stack([step[name] for step in steps])) for name in steps[0]}
    value, next_value = (rollout[name].sum(-1) for name in ("obs", "next_obs"))  # any function of the state
    rollout["reward"] = torch.as_tensor(draw.normal(size=value.shape).astype(np.float32))
    found = example.advantages(rollout, value.flatten(), next_value.flatten(), settings)
    done = rollout["terminated"] | rollout["truncated"]
    for start, env in np.ndindex(*value.shape):
        total, weight, time = 0.0, 1.0, start
        while True:
            total, weight = total + weight * float(rollout["reward"][time, env]), weight * 0.9
            if done[time, env] or time == len(done) - 1:
                break
            time += 1
        if not rollout["terminated"][time, env]:
            total += weight * float(next_value[time, env])
        if rollout["mask"][start : time + 1, env].all():
            assert float(found[start, env]) == pytest.approx(total - float(value[start, env]), abs=1e-3)


def test_minigrid_is_played_with_the_paper_bonus(example, told, capsys):
    pytest.importorskip("minigrid")
    example.train(example.Args(device="cpu", num_envs=4, total_steps=512, epochs=1))
    assert told[0]["obs"].shape == (128, 4, 7, 7, 3)
    assert "512 steps" in capsys.readouterr().out
