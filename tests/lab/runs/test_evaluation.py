from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from tests.corridor import HOST, HostCorridor

from etd.agent.ppo import PPO
from etd.bonuses import NoBonus
from etd.core.errors import UserError
from etd.core.keys import named
from etd.envs import Task
from etd.lab.runs import evaluate as evaluation
from etd.lab.runs import session
from etd.training import compiled, host_play
from etd.training.experiment import Experiment

EPISODES = 6


def test_evaluate_is_the_mean_over_played_episodes(trained: Path) -> None:
    run, state = session.load(trained)
    scores = evaluation.evaluate(trained, episodes=EPISODES)
    assert [row["seed"] for row in scores["seeds"]] == [3, 4]
    played = compiled.make_evaluator(run.experiment, EPISODES, False)(state, 1, named(state.key[1], "evaluate"))
    row = scores["seeds"][1]
    assert row["success"] == pytest.approx(np.mean(played.success))
    assert row["return"] == pytest.approx(np.mean(played.total))
    assert row["length"] == pytest.approx(np.mean(played.length))
    for name in ("success", "return", "length"):
        assert scores["overall"][name] == pytest.approx(np.mean([row[name] for row in scores["seeds"]]))


def test_table_prints_a_row_per_seed() -> None:
    rows = [{"seed": 3, "success": 0.25, "return": 0.125, "length": 80.0}]
    rows += [{"seed": 4, "success": 0.75, "return": 0.625, "length": 20.0}]
    overall = {"success": 0.5, "return": 0.375, "length": 50.0}
    scores = {"env": "MiniGrid-Empty-5x5-v0", "episodes": 8, "greedy": True, "seeds": rows, "overall": overall}
    stream = StringIO()
    evaluation.table(scores, Console(file=stream, width=100))
    text = stream.getvalue()
    assert "8 fresh episodes per seed, greedy actions" in text
    cells = [line.strip("│ ").split() for line in text.splitlines() if "%" in line]
    bare = [[cell for cell in line if cell != "│"] for line in cells]
    assert bare == [
        ["3", "25.0%", "0.125", "80.0"],
        ["4", "75.0%", "0.625", "20.0"],
        ["all", "50.0%", "0.375", "50.0"],
    ]


def test_table_of_achievements() -> None:
    """With Crafter's score, the most frequent achievement first."""
    means = {"return": 2.0, "length": 170.0, "score": 4.625}
    unlocked = {"collect_wood": 0.25, "eat_cow": 0.0, "wake_up": 0.875}
    scores = {"env": "Crafter-v0", "episodes": 8, "greedy": False, "overall": {**means, "unlocked": unlocked}}
    scores["seeds"] = [{"seed": 0, **means, "unlocked": unlocked}]
    stream = StringIO()
    evaluation.table(scores, Console(file=stream, width=100))
    lines = stream.getvalue().splitlines()
    assert any("4.62" in line for line in lines)
    order = [next(k for k, line in enumerate(lines) if name in line) for name in ("wake up", "collect wood", "eat cow")]
    assert order == sorted(order)
    assert "87.5%" in lines[order[0]]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["", "step kill"])
def test_on_the_host_episodes_are_shared_out_and_can_be_played_again(fault: str, tmp_path: Path, monkeypatch) -> None:
    """Five episodes in two environments: three and two, each whole, each given by its seed and actions; what is lost
    with a worker is made up for."""
    experiment = Experiment(
        env=Task(HOST),
        bonus=NoBonus(),
        ppo=PPO(minibatch=8, epochs=1, features=8, latent=8),
        num_envs=2,
        rollout_steps=4,
    )
    run = session.train(experiment=replace(experiment, steps=8), out=tmp_path / "run", quiet=True)
    _, state = session.load(run.path)
    env = experiment.env.host()
    assert env is not None
    (tmp_path / "faults").mkdir()
    (tmp_path / "faults" / "0").write_text(fault or "no fault")
    monkeypatch.setenv("CORRIDOR_FAULTS", str(tmp_path / "faults"))
    said: list[str] = []
    played = host_play.play(experiment, env, state, 0, 5, say=said.append)
    assert len(said) == bool(fault)
    assert len(played) == 5
    assert len({one.seed for one in played}) == 5
    for one in played:
        corridor = HostCorridor()
        corridor.reset(seed=one.seed)
        steps = [corridor.step(int(action)) for action in one.actions]
        np.testing.assert_array_equal([step[1] for step in steps], one.rewards)
        assert [k for k, step in enumerate(steps) if step[2] or step[3]] == [len(steps) - 1]
        assert one.success == (steps[-1][1] > 0)
    if fault:
        return
    scores = evaluation.evaluate(run.path, episodes=5)
    assert scores["overall"]["return"] == pytest.approx(np.mean([one.rewards.sum() for one in played]))
    assert scores["overall"]["success"] == pytest.approx(scores["overall"]["return"])


def test_an_episode_that_does_not_repeat_itself_is_told_of() -> None:
    """From the middle two steps to the right end pay 0 and 1."""
    env, right = Task(HOST).host(), np.ones(2, np.int32)
    assert env is not None
    for rewards, repeats in ([0.0, 1.0], True), ([0.0, 0.0], False):
        said: list[str] = []
        played = host_play.Played(7, right, np.array(rewards, np.float32), True, np.zeros(0, bool))
        pictures, obs, step = host_play.replay(env, played, None, [2], said.append)
        assert list(pictures) == [0, 2]
        assert obs.shape == (3, 6)
        assert step.terminated.tolist() == [False, True]
        assert ["is not deterministic" in sentence for sentence in said] == [True] * (not repeats)


def test_mistakes_get_sentences(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run"):
        evaluation.evaluate(tmp_path / "nowhere")
    with pytest.raises(UserError, match="at least 1"):
        evaluation.evaluate(trained, episodes=0)
