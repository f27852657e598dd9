"""One sentence for each mistake; the user's own exception, with its own traceback, where their code raised it."""

from __future__ import annotations

import importlib
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etd as package
from etd.training.config import override
from etd.training.validate import check
from tests.outside.conftest import PPO, SIZES, command, etd, surroundings

SPEC = package.EnvSpec("line", (1,), "float32", 1.0, package.Discrete(2), max_steps=9, shortest=1, kind="vector")


@dataclass(frozen=True)
class Line:
    """Sound; the others each break one thing."""

    spec = SPEC

    def reset(self, key: Any) -> Any:
        return jnp.int32(0), jnp.zeros(1)

    def step(self, state: Any, action: Any, key: Any) -> Any:
        end = state + 1 == 9
        return state + 1, package.Transition(jnp.zeros(1), jnp.float32(0), jnp.zeros((), bool), end)


class NoStep:
    spec = SPEC

    def reset(self, key: Any) -> Any: ...


class NoSpec(Line):
    spec = {"obs_shape": (1,)}  # noqa: RUF012


class WrongShape(Line):
    def reset(self, key: Any) -> Any:
        return jnp.int32(0), jnp.zeros(2)


class ChangingShape(Line):
    def step(self, state: Any, action: Any, key: Any) -> Any:
        state, transition = super().step(state, action, key)
        return state, transition._replace(next_obs=jnp.zeros(3))


class ChangingState(Line):
    def step(self, state: Any, action: Any, key: Any) -> Any:
        return jnp.float32(0), super().step(state, action, key)[1]


class Tuples(Line):
    def step(self, state: Any, action: Any, key: Any) -> Any:
        return state, jnp.zeros(1), 0.0, False, {}


class IntegerReward(Line):
    def step(self, state: Any, action: Any, key: Any) -> Any:
        state, transition = super().step(state, action, key)
        return state, transition._replace(reward=jnp.int32(1))


class NoAction(Line):
    spec = package.EnvSpec("line", (1,), "float32", 1.0, package.Discrete(0), 9, 1, "vector")


class ShortestAboveLongest(Line):
    spec = package.EnvSpec("line", (1,), "float32", 1.0, package.Discrete(2), 9, 10, "vector")


@dataclass(frozen=True)
class Unhashable(Line):
    places: list = field(default_factory=list)


class NeedsArguments(Line):
    def __init__(self, size: int) -> None: ...


class Endless(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)


@pytest.mark.parametrize(
    ("env", "says"),
    [
        (NoStep(), "has no step; a DeviceEnv has spec, reset and step"),
        (NoSpec(), r"NoSpec\.spec is dict, not an etd\.EnvSpec"),
        (WrongShape(), r"reset's observation is float32\[2\]; the spec says float32\[1\]"),
        (ChangingShape(), r"step's next_obs is float32\[3\]; the spec says float32\[1\]"),
        (ChangingState(), "a state whose shapes or types differ from reset's"),
        (Tuples(), r"step must return \(state, etd\.Transition\)"),
        (IntegerReward(), r"step's reward is int32\[\]; it must be float32\[\]"),
        (NoAction(), "has no actions"),
        (ShortestAboveLongest(), r"episodes take 10 to 9 steps"),
        (Unhashable(), "cannot be hashed"),
        (NeedsArguments, "cannot be made: missing a required argument: 'size'"),
        (3, "3 is not an environment"),
        (object(), "is not an environment"),
        (Endless, "has no time limit"),
        (Endless(), "Pass its class, or a function that creates one"),
        (lambda: 3, "returned int, not a Gymnasium environment"),
        ("no_such_module:Thing", "There is no module 'no_such_module'"),
        ("point_maze:Thing", "point_maze has no 'Thing'.*It has .*PointMaze"),
        ("etd_example.parts:NotAPart", "is not an environment"),
        ("", "There is no environment ''"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else getattr(value, "__name__", type(value).__name__),
)
def test_environments(env: Any, says: str) -> None:
    with pytest.raises(package.UserError, match=says):
        check(package.Experiment(env=env, bonus="none"))


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("bonus=etd_example.parts:Plain", r"etd_example\.parts:Plain is not a Bonus"),
        ("ppo=etd_example.bonus:Impact", r"is not a PPO: it must be a class derived from etd\.PPO"),
        ("ppo=etd_example.parts:Missing", "has no 'Missing'"),
        ("ppo.trunk=nowhere:Wide", "There is no module 'nowhere'"),
        ("ppo.cell=rnn", "There is no cell 'rnn'"),
        ("ppo.trunk=none", "There is no trunk 'none'"),
        ("bonus=etd.bonuses:BONUSES", "is not a Bonus"),
        ("env.size=9", "There is no field 'size'"),
    ],
)
def test_parts(assignment: str, says: str) -> None:
    with pytest.raises(package.UserError, match=says):
        override(package.Experiment(), assignment)


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("bonus.scale=0", r"bonus\.scale = 0\.0 is out of range: it must be greater than 0"),
        ("bonus.scale=much", "takes a number"),
        ("bonus.queue=-3", None),
        ("env.size=2", r"env\.custom\.size = 2 is out of range: it must be at least 3"),
        ("env.size=4.5", "takes a whole number"),
        ("env.sise=4", "Did you mean 'size'"),
        ("env.noise=-1", r"env\.noise = -1\.0 is out of range"),
    ],
)
def test_fields_from_outside_are_typed_and_judged_by_their_own_limits(assignment: str, says: str | None) -> None:
    presets = importlib.import_module("etd.training.presets")
    experiment = presets.choose("point_maze:PointMaze", "etd_example.bonus:Impact")
    if says is None:
        check(override(experiment, assignment))
        return
    with pytest.raises(package.UserError, match=says):
        check(override(experiment, assignment))


def test_an_observation_whose_shape_changes_ends_the_run_with_a_sentence(tmp_path: Path) -> None:
    growing = importlib.import_module("etd_example.host").Growing
    fields = {**PPO, **SIZES, "num_envs": 2, "steps": 64}
    with pytest.raises(
        package.UserError, match=r"returned an observation of shape \[3\]; its space says \[2\]"
    ) as caught:
        package.train(growing, "none", out=tmp_path / "run", quiet=True, fields=fields)
    assert "Traceback" not in str(caught.value)


def test_a_bonus_without_defaults_is_refused() -> None:
    @dataclass(frozen=True)
    class Needs(package.NoBonus):
        size: int = field(kw_only=True)

    says = r"cannot be made: missing a required (keyword-only )?argument: 'size'"  # newer Pythons say its kind
    with pytest.raises(package.UserError, match=says):
        package.Experiment(bonus=Needs)


def test_an_argument_of_a_gymnasium_class_is_typed() -> None:
    experiment = package.Experiment(env="etd_example.host:Walk")
    for assignment, says in (("env.length=long", "takes a whole number"), ("env.lenght=3", "Did you mean 'length'")):
        with pytest.raises(package.UserError, match=says):
            override(experiment, assignment)


def test_a_field_that_cannot_be_hashed_is_named() -> None:
    @dataclass(frozen=True)
    class Listed(package.NoBonus):
        places: Any = ()

    with pytest.raises(package.UserError, match=r"bonus\.places is a dict, which cannot be hashed"):
        check(package.Experiment(bonus=Listed({"a": 1})))


def test_a_mistake_inside_a_users_module_keeps_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "written.py").write_text("import etd\nvalue = 1 / 0\n")
    run = subprocess.run(
        command("train", "--env", "written:Thing"), cwd=tmp_path, env=surroundings(), capture_output=True, text=True
    )
    assert run.returncode == 1
    assert "value = 1 / 0" in run.stderr
    assert "ZeroDivisionError" in run.stderr
    (tmp_path / "written.py").write_text("import a_package_that_is_not_there\n")
    run = subprocess.run(
        command("train", "--env", "written:Thing"), cwd=tmp_path, env=surroundings(), capture_output=True, text=True
    )
    assert "No module named 'a_package_that_is_not_there'" in run.stderr
    assert "There is no module 'written'" in etd("train", "--env", "written:X", folder=tmp_path.parent, ok=False)


def test_an_exception_in_a_users_environment_goes_through() -> None:
    class Raises(Line):
        def step(self, state: Any, action: Any, key: Any) -> Any:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        check(package.Experiment(env=Raises(), bonus="none"))
    assert jax.eval_shape(Line().reset, jax.random.key(0))[1].shape == (1,)
