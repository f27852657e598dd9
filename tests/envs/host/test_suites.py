"""What every host environment keeps to, and what is said of those that cannot be had."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from tests.drawing import can_draw

from etd.core.errors import UserError
from etd.core.types import Box, Discrete
from etd.envs import families, host

LIGHT = ("Crafter-v0", "Crafter-NoLife-v0", *families.find("dmc:").ids, "HalfCheetahVelSparse-v0")
PLAIN = ("gymnasium:CartPole-v1", "gymnasium:Pendulum-v1")
HEAVY = (*families.find("MiniWorld-MazeS3-v0").ids, *families.find("metaworld:").ids)
EVERY = [*LIGHT, *PLAIN, *(pytest.param(name, marks=pytest.mark.suites) for name in HEAVY)]


@pytest.fixture
def make():
    """Makes environments, skips where their packages are missing, closes them."""
    envs = []

    def make(name: str):
        if why := families.find(name).absence():
            pytest.skip(why)
        envs.append(host.make(name))
        return envs[-1]

    yield make
    for env in envs:
        env.close()


def play(env, seed: int, steps: int = 60, draw: bool = False) -> list[tuple]:
    """What an episode or more consist of, under actions of a seed of their own."""
    env.action_space.seed(0)
    seen = [(env.reset(seed=seed)[0],)]
    for _ in range(steps):
        if draw:
            env.render()
        seen.append(env.step(env.action_space.sample())[:4])
        if seen[-1][2] or seen[-1][3]:
            seen.append((env.reset()[0],))
    return seen


def same(one: list[tuple], other: list[tuple]) -> bool:
    pairs = [(a, b) for x, y in zip(one, other, strict=False) for a, b in zip(x, y, strict=False)]
    return [len(step) for step in one] == [len(step) for step in other] and all(np.array_equal(a, b) for a, b in pairs)


@pytest.mark.filterwarnings("ignore:.*WARN")  # on bounds at infinity and environments outside the registry
@pytest.mark.parametrize("name", EVERY)
def test_gymnasiums_checker_passes(make, name) -> None:
    from gymnasium.utils.env_checker import check_env

    check_env(make(name), skip_render_check=True)  # pictures are tested below; this would open windows


@pytest.mark.parametrize("name", EVERY)
def test_a_seed_gives_the_episode_and_drawing_it_changes_nothing(make, name) -> None:
    env = make(name)
    first = play(env, 1)
    assert same(first, play(make(name), 1))
    if can_draw(name):
        assert same(first[:20], play(env, 1, 19, draw=True)[:20])
    assert not all(same(first, play(env, seed)) for seed in (2, 3, 4))  # of small mazes there are few


@pytest.mark.parametrize("name", EVERY)
def test_form(make, name) -> None:
    env = make(name)
    spec = host.spec_of(env, name)
    assert (spec.name, spec.shortest, spec.max_steps) == (name, 1, env.max_steps)
    obs, _ = env.reset(seed=0)
    if spec.kind == "pixels":
        assert (spec.obs_shape, spec.obs_dtype, spec.obs_high) == ((64, 64, 3), "uint8", 255.0)
    else:
        assert (spec.kind, spec.obs_dtype, len(spec.obs_shape)) == ("vector", "float32", 1)
    assert (obs.shape, str(obs.dtype)) == (spec.obs_shape, spec.obs_dtype)
    obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
    assert (obs.shape, str(obs.dtype)) == (spec.obs_shape, spec.obs_dtype)
    assert [type(x) for x in (reward, terminated, truncated)] == [float, bool, bool]
    assert isinstance(spec.action, Discrete | Box)
    if not can_draw(name):
        pytest.skip("there is no OpenGL to draw MuJoCo with")
    picture = env.render()
    assert picture.dtype == np.uint8
    assert picture.ndim == 3
    assert picture.shape[2] == 3
    assert min(picture.shape[:2]) >= 256
    assert picture.std() > 10  # something is on it


# What cannot be had ----------------------------------------------------------------------------------------------


def test_nothing_is_imported_before_an_environment_is_made() -> None:
    """Without any of the packages, the table is there and says what is missing."""
    packages = sorted({package for one in families.FAMILIES for package in one.packages} | {"pyglet", "numba"})
    code = f"""
import sys
for package in {packages}:
    sys.modules[package] = None
from etd.envs import families, host
assert all(one.missing() == one.packages for one in families.FAMILIES)
try:
    host.make("Crafter-v0")
except ValueError as error:
    print(error)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "Crafter-v0 needs crafter, which is not installed: pip install 'etd[crafter]'"


def test_suites_are_found_by_the_form_of_an_id() -> None:
    names = ("Crafter-NoLife-v0", "dmc:walker-run", "metaworld:drawer-open", "gymnasium:module:Id-v0")
    assert [families.find(name).name for name in names] == ["crafter", "dmc", "metaworld", "gymnasium"]
    assert not families.find("MiniGrid-DoorKey-8x8-v0").on_host
    assert len({name for one in families.FAMILIES if one.on_host for name in one.ids}) == 12


def test_an_unknown_id_is_refused_with_a_guess() -> None:
    with pytest.raises(UserError, match=r"no environment 'Crafter-v1'. Did you mean 'Crafter-v0'\?"):
        host.make("Crafter-v1")


def test_a_package_that_does_not_import_is_said(monkeypatch) -> None:
    if why := families.find("Crafter-v0").absence():
        pytest.skip(why)
    monkeypatch.setitem(sys.modules, "etd.envs.host.crafter", None)  # what a package that fails comes to
    with pytest.raises(UserError, match=r"Crafter-v0 failed to import \(.*\): pip install 'etd\[crafter\]'"):
        host.make("Crafter-v0")
