"""`etd check` tells a bonus that behaves from one that does not."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from etd.bonuses import Count
from etd.cli import main
from etd.lab.check import bonus as behaviour
from etd.lab.check.bonus import Round, examine
from etd.training.config import override
from etd.training.presets import choose

STEPS, ENVS = behaviour.STEPS, 3


@pytest.fixture(scope="module")
def rollout(rollout_of):
    """A walk over ten places, so that most steps come back to one."""
    rng = np.random.default_rng(0)
    places = np.abs(np.cumsum(rng.integers(-1, 2, (STEPS + 1, ENVS)), 0)) % 10
    obs = places[:, :, None].astype(np.float32)
    return rollout_of(obs[:-1], np.zeros((STEPS, ENVS), bool), obs[1:])


def paid(*bonuses, loss=()):
    losses = loss or [1.0] * len(bonuses)
    return [Round(None, np.asarray(b, np.float32), {"loss": x}) for b, x in zip(bonuses, losses, strict=True)]


def test_numbers_that_are_none_are_found():
    assert behaviour._finite(paid([1, 2], [3, 4])).good
    finding = behaviour._finite(paid([1, 2], [np.nan, np.inf]))
    assert not finding.good
    assert "2 of 4 steps" in finding.words


def test_a_constant_bonus_is_found():
    assert behaviour._varies(paid([0, 1])).good
    assert not behaviour._varies(paid([5, 5])).good


def test_paying_for_revisits_is_found(rollout):
    bonus = Count().score(Count().init(None, SpecOf(STEPS), ENVS), rollout, None)[1].bonus
    assert behaviour._falls_on_revisits(bonus, rollout).good
    assert not behaviour._falls_on_revisits(1 - bonus, rollout).good
    assert not behaviour._falls_on_revisits(jnp.zeros_like(bonus), rollout).good


def test_never_coming_back_is_said(rollout_of):
    obs = np.arange(STEPS + 1.0)[:, None, None] * np.ones((1, ENVS, 1))
    rollout = rollout_of(obs[:-1], np.zeros((STEPS, ENVS), bool), obs[1:])
    assert "could not be checked" in behaviour._falls_on_revisits(jnp.ones((STEPS, ENVS)), rollout).words


def test_a_memory_that_outlives_its_episode_is_found(rollout):
    def score(rollout):
        return Count().score(Count().init(None, SpecOf(STEPS), ENVS), rollout, None)[1].bonus

    def never_ending(rollout):
        step = rollout.step
        return score(rollout._replace(step=step._replace(terminated=jnp.zeros_like(step.terminated))))

    assert behaviour._forgets(score, rollout).good
    assert not behaviour._forgets(never_ending, rollout).good


def test_a_model_that_does_not_learn_is_found():
    assert [f.good for f in behaviour._learns(paid([1], [1], loss=(2.0, 1.0)), "rnd")] == [True]
    assert [f.good for f in behaviour._learns(paid([1], [1], loss=(1.0, 2.0)), "rnd")] == [False]
    (nothing,) = behaviour._learns(paid([1], [1], loss=(0.0, 0.0)), "agac")
    assert nothing.good
    assert "nothing to learn" in nothing.words


class SpecOf:
    """All that Count asks of a spec."""

    def __init__(self, max_steps):
        self.max_steps = max_steps


@pytest.mark.slow
def test_a_whole_examination(monkeypatch):
    monkeypatch.setattr(behaviour, "STEPS", 32)
    monkeypatch.setattr(behaviour, "ROUNDS", 3)
    experiment = choose("MiniGrid-Empty-5x5-v0", "icm")
    sizes = ["num_envs=4", "ppo.features=8", "ppo.minibatch=32", "bonus.features=8", "bonus.latent=16"]
    for assignment in [*sizes, "bonus.minibatch=32", "bonus.learning_rate=3e-3"]:
        experiment = override(experiment, assignment)
    findings = examine(experiment)
    assert [finding.good for finding in findings if "seen before" not in finding.words] == [True] * (len(findings) - 1)
    assert sum("loss" in finding.words for finding in findings) == 3  # inverse, forward and their sum


@pytest.mark.slow
def test_the_command_says_so_in_its_exit_status(monkeypatch, capsys):
    bad = [behaviour.Finding(True, "fine"), behaviour.Finding(False, "not fine")]
    monkeypatch.setattr(behaviour, "examine", lambda experiment: bad)
    with pytest.raises(SystemExit) as stop:
        main(["check", "--bonus", "rnd"])
    assert stop.value.code == 1
    assert "wrong  not fine" in capsys.readouterr().out
