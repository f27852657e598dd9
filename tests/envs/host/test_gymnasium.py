"""Anything in Gymnasium: put into form where that can be done, refused by a sentence where not."""

from __future__ import annotations

import sys

import jax
import numpy as np
import pytest
from flax import nnx

gymnasium = pytest.importorskip("gymnasium")
from gymnasium import spaces  # noqa: E402

from etd.core.errors import UserError  # noqa: E402
from etd.core.types import Box, Discrete  # noqa: E402
from etd.envs import Task, host  # noqa: E402
from etd.nets.trunks import Trunk  # noqa: E402

VECTOR = spaces.Box(-1.0, 1.0, (2,), np.float64)
IMAGE = spaces.Box(0, 255, (44, 48, 3), np.uint8)


class Toy(gymnasium.Env):
    """Tells which action it was given; takes no render mode."""

    def __init__(self, seen: spaces.Space = VECTOR, acts: spaces.Space | None = None) -> None:
        self.observation_space, self.action_space = seen, acts or spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1, False, False, {"action": action}


gymnasium.register("Toy-v0", Toy, max_episode_steps=7)
gymnasium.register("Endless-v0", Toy)


def toy(**options):
    return host.make("gymnasium:Toy-v0", **options)


def test_numbers_become_float32_and_images_stay() -> None:
    assert host.spec_of(toy(), "x").obs_dtype == "float32"
    assert toy().reset(seed=0)[0].dtype == np.float32
    counts = toy(seen=spaces.Box(0, 255, (4,), np.uint8))
    assert host.spec_of(counts, "x").kind == "vector"
    assert counts.reset(seed=0)[0].dtype == np.float32
    image = host.spec_of(toy(seen=IMAGE), "x")
    assert (image.kind, image.obs_shape, image.obs_high) == ("pixels", (44, 48, 3), 255.0)


def test_actions_are_shifted_and_scaled() -> None:
    shifted = toy(acts=spaces.Discrete(3, start=5))
    shifted.reset(seed=0)
    assert host.spec_of(shifted, "x").action == Discrete(3)
    assert shifted.step(0)[4]["action"] == 5
    scaled = toy(acts=spaces.Box(np.float32([-1, 0]), np.float32([1, 4])))
    scaled.reset(seed=0)
    assert host.spec_of(scaled, "x").action == Box(2, -1.0, 1.0)
    np.testing.assert_allclose(scaled.step(np.float32([0.5, 0.5]))[4]["action"], [0.5, 3.0])
    assert host.spec_of(toy(acts=spaces.Box(-2.0, 2.0, (3,))), "x").action == Box(3, -2.0, 2.0)


@pytest.mark.parametrize(
    "options",
    [
        {"seen": spaces.Dict(a=VECTOR)},
        {"seen": spaces.Tuple([VECTOR])},
        {"seen": spaces.Discrete(4)},
        {"seen": spaces.Box(-1.0, 1.0, (8, 8, 3))},
        {"acts": spaces.MultiDiscrete([2, 2])},
        {"acts": spaces.Box(-np.inf, np.inf, (2,))},
        {"acts": spaces.Box(-1.0, 1.0, (2, 2))},
        {"acts": spaces.Box(0, 9, (2,), np.int32)},
    ],
    ids=str,
)
def test_other_spaces_are_refused_by_name(options) -> None:
    with pytest.raises(UserError, match=r"^gymnasium:Toy-v0 .* are supported") as refusal:
        toy(**options)
    assert str(next(iter(options.values()))) in str(refusal.value)


def test_time_limits() -> None:
    env = toy()
    env.reset(seed=0)
    assert [env.step(0)[2:4] for _ in range(7)] == [(False, False)] * 6 + [(False, True)]
    assert host.spec_of(env, "x").max_steps == 7
    with pytest.raises(UserError, match="gymnasium:Endless-v0 has no time limit"):
        host.make("gymnasium:Endless-v0")
    env = host.make("gymnasium:Endless-v0", max_steps=2)
    env.reset(seed=0)
    assert [env.step(0)[3] for _ in range(2)] == [False, True]
    assert env.max_steps == 2


def test_a_true_end_is_a_termination() -> None:
    env = host.make("gymnasium:CartPole-v1")
    env.reset(seed=0)
    end = (False, False)
    while not any(end):
        end = env.step(0)[2:4]
    assert end == (True, False)


@pytest.mark.parametrize("side", [3, 7, 43, 44])
def test_every_size_of_image_has_a_network(side) -> None:
    spec = host.spec_of(toy(seen=spaces.Box(0, 255, (side, 60, 3), np.uint8)), "x")
    assert spec.kind == ("pixels" if side == 44 else "grid")
    trunk = nnx.eval_shape(lambda: Trunk().build(spec, 8, "layer"))
    seen = jax.ShapeDtypeStruct((2, side, 60, 3), np.uint8)
    assert nnx.eval_shape(lambda net, obs: net(obs), trunk, seen).shape == (2, 8)


def test_actions_are_within_bounds_in_their_own_type() -> None:
    acts = spaces.Box(-0.1, 0.1, (1,), np.float64)
    env = toy(acts=acts)
    env.reset(seed=0)
    for bound in (-0.1, 0.1):
        assert acts.contains(env.step(np.float32([bound]))[4]["action"])


def test_a_fall_is_no_success() -> None:
    """Nothing tells whether an end is a good one."""
    assert not host.spec_of(host.make("gymnasium:CartPole-v1"), "x").can_succeed


def test_an_id_without_a_version_is_the_newest() -> None:
    assert host.make("gymnasium:CartPole").max_steps == 500


def test_a_module_can_be_named() -> None:
    pytest.importorskip("minigrid")
    env = host.make("gymnasium:etd.envs.minigrid.gym:etd/MiniGrid-DoorKey-5x5-v0", max_steps=50)
    assert host.spec_of(env, "x").obs_shape == (7, 7, 3)


def test_a_missing_package_for_pictures_is_said(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    env = host.make("gymnasium:CartPole-v1")
    env.reset(seed=0)
    with pytest.raises(UserError, match="gymnasium:CartPole-v1 cannot be drawn: pygame is not installed"):
        env.render()


def test_what_cannot_be_made_is_said() -> None:
    with pytest.raises(UserError, match="Gymnasium cannot create 'Nothing-v0': Environment `Nothing` doesn't exist"):
        host.make("gymnasium:Nothing-v0")
    with pytest.raises(UserError, match="There is no module 'nowhere'"):
        Task.of("gymnasium:nowhere:Thing-v0")
    with pytest.raises(UserError, match="cannot create ':Thing-v0': The part before the colon must be the module"):
        host.make("gymnasium::Thing-v0")


def test_what_draws_no_pictures_is_shown_by_its_observations() -> None:
    for seen in (VECTOR, IMAGE):
        env = toy(seen=seen)
        env.reset(seed=0)
        assert (drawn := env.render()).dtype == np.uint8
        assert min(drawn.shape[:2]) >= 200
        assert drawn.std() > 10
