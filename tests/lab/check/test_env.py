"""`etd check` finds an environment that breaks a promise, and finds nothing else wrong with it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etd
from etd.envs import Task
from etd.lab.check import env as behaviour
from etd.lab.check.env import RandomPlay, examine

LIMIT, SHORTEST = 10, 4
VECTOR = etd.EnvSpec("vector", (2,), "float32", 1.0, etd.Discrete(2), LIMIT, SHORTEST, "vector")


@dataclass(frozen=True)
class Coins:
    """Shows a number drawn at its start and the time; from the fourth step on each step may be the last."""

    flaw: str = ""
    spec = VECTOR

    def reset(self, key: Any) -> Any:
        chance = np.random.default_rng().random() if self.flaw == "chance of its own" else jax.random.uniform(key)
        state = (jnp.float32(chance), jnp.int32(0))
        return state, self.see(state)

    def see(self, state: Any) -> Any:
        drawn, time = state
        return jnp.stack([drawn, time / LIMIT]).astype(jnp.float32)

    def step(self, state: Any, action: Any, key: Any) -> Any:
        state = (state[0], state[1] + 1)
        time, coin = state[1], jax.random.bernoulli(key, 0.3)
        ended, late = (time >= SHORTEST) & coin, time == LIMIT
        reward = jnp.where(self.flaw == "NaN reward", jnp.nan, time / LIMIT).astype(jnp.float32)
        never = jnp.zeros((), bool)
        if self.flaw == "endless":
            ended, late = never, never
        if self.flaw == "too short":
            ended = (time >= SHORTEST - 1) & coin
        if self.flaw == "time-outs called ends":
            ended, late = late, never
        return state, etd.Transition(self.see(state), reward, ended, late)


FLAWS = {
    "NaN reward": "rewards are NaN",
    "chance of its own": "the same seed and actions give .* from step 0 on",
    "endless": r"512 steps; the spec says at most 10 \(max_steps\)",
    "too short": r"3 steps; the spec says at least 4 \(shortest\)",
    "time-outs called ends": r"max_steps .*terminated.*truncated",
}


def test_a_sound_environment_is_found_sound() -> None:
    findings = examine(Task.of(Coins()))
    assert [finding.good for finding in findings] == [True] * 7
    said = " / ".join(finding.words for finding in findings)
    for words in (
        "float32[2], as the spec says",
        "rewards from 0.1 to 1",
        "8 first observations in 8",
        "terminated",
        "truncated",
    ):
        assert words in said


@pytest.mark.parametrize("flaw", FLAWS)
def test_the_broken_promise_is_found_and_no_other(flaw: str) -> None:
    """And a bonus is not looked at in such an environment."""
    findings = etd.check(Coins(flaw), "none")
    (bad,) = [finding.words for finding in findings if not finding.good]
    assert re.search(FLAWS[flaw], bad)
    assert len(findings) == 7


def test_another_shape_is_refused_before_anything_is_compiled() -> None:
    class Wide(Coins):
        def see(self, state: Any) -> Any:
            return jnp.zeros(3)

    with pytest.raises(etd.UserError, match=r"reset's observation is float32\[3\]"):
        examine(Task.of(Wide()))


# On the host -----------------------------------------------------------------------------------------------------


class Walk(gymnasium.Env):
    """Sound."""

    observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    max_steps = LIMIT

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = self.np_random.random()
        return np.array([self.place, 0], np.float32), {}

    def step(self, action: int) -> Any:
        return np.array([self.place, action], np.float32), 0.0, bool(self.np_random.random() < 0.1), False, {}


class Unseeded(Walk):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=None)


class Early(Walk):
    def step(self, action: int) -> Any:
        obs, reward, ended, _, info = super().step(action)
        return obs, reward, False, ended, info


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Walk, []),
        (Unseeded, ["from step 0 on"]),
        (Early, ["truncated before max_steps"]),
    ],
)
def test_gymnasium_classes(kind: type, words: list[str]) -> None:
    bad = [finding.words for finding in examine(Task.of(kind)) if not finding.good]
    assert len(bad) == len(words)
    assert all(part in said for part, said in zip(words, bad, strict=True))


# The judges, by arrays -------------------------------------------------------------------------------------------


def played(steps: int = 6, envs: int = 2, **fields: Any) -> RandomPlay:
    """Play in which nothing happens but what is given."""
    nothing = np.zeros((steps, envs), bool)
    play = RandomPlay(
        np.zeros((envs, 2), np.float32), np.zeros((steps, envs, 2), np.float32), nothing.astype(float), nothing, nothing
    )
    return play._replace(**fields)


def at(*places: tuple[int, int], steps: int = 6) -> np.ndarray:
    mask = np.zeros((steps, 2), bool)
    mask[tuple(np.transpose(places))] = True
    return mask


def test_ages_are_counted_from_every_end() -> None:
    play = played(terminated=at((1, 0)), truncated=at((3, 0), (4, 1)))
    np.testing.assert_array_equal(behaviour.ages(play).T, [[1, 2, 1, 2, 1, 2], [1, 2, 3, 4, 5, 1]])


def test_shapes_and_types_are_those_of_the_spec() -> None:
    assert behaviour.shapes(VECTOR, played()).good
    wide = behaviour.shapes(VECTOR, played(obs=np.zeros((6, 2, 3), np.float32)))
    assert not wide.good
    assert "an observation is float32[3]; the spec says float32[2]" in wide.words
    precise = behaviour.shapes(VECTOR, played(first=np.zeros((2, 2))))
    assert not precise.good
    assert "the first observation is float64[2]" in precise.words


def test_values_are_finite_and_images_within_their_range() -> None:
    lit = played(obs=np.full((6, 2, 2), 3, np.float32))
    assert behaviour.values(VECTOR, lit).good
    bright = behaviour.values(replace(VECTOR, kind="grid"), lit)
    assert not bright.good
    assert "images reach 3; the spec says at most 1" in bright.words
    for field in ("first", "obs", "reward"):
        spoilt = getattr(played(), field).copy()
        spoilt[-1] = -np.inf
        assert not behaviour.values(VECTOR, played(**{field: spoilt})).good


def test_the_first_step_that_differs_is_named() -> None:
    reward = np.zeros((6, 2))
    reward[4, 1] = 1
    found = behaviour.deterministic(played(), played(reward=reward))
    assert not found.good
    assert "from step 4 on" in found.words
    assert not behaviour.deterministic(played(), played(first=np.ones((2, 2), np.float32))).good
    nan = played(reward=np.full((6, 2), np.nan))
    assert behaviour.deterministic(nan, nan).good


def test_starts_may_be_one_or_many() -> None:
    other = played(first=np.array([[0, 1], [1, 0]], np.float32))
    assert "the same observation" in behaviour.varied(played(), played()).words
    assert "2 first observations in 2" in behaviour.varied(other, played()).words


def test_an_end_on_the_last_allowed_step_may_be_either() -> None:
    spec = replace(VECTOR, max_steps=3, shortest=1)
    both = played(terminated=at((2, 0)), truncated=at((2, 1)))
    assert behaviour.ends(spec, both, behaviour.ages(both)).good
    assert behaviour.ends(spec, played(2), behaviour.ages(played(2))).good
    assert behaviour.shortest(spec, np.array([])).good
