"""The Gymnasium face: Gymnasium's own checker, autoreset, seeding, refusals."""

from __future__ import annotations

import jax
import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")
from gymnasium.utils.env_checker import check_env  # noqa: E402
from gymnasium.vector import AutoresetMode  # noqa: E402

import etd.envs.minigrid.gym as face  # noqa: E402
from etd.envs.minigrid import IDS  # noqa: E402

NAME = "MiniGrid-Empty-Random-5x5-v0"
"""Small and short: random play ends its episodes often, by goal and by clock."""


@pytest.fixture(scope="module")
def envs():
    return gymnasium.make_vec(f"etd/{NAME}", num_envs=8, render_mode="rgb_array")


def test_every_level_is_registered() -> None:
    assert {f"etd/{name}" for name in IDS} <= set(gymnasium.registry)


def test_gymnasiums_checker_passes() -> None:
    env = gymnasium.make(f"etd/{NAME}", render_mode="rgb_array")
    check_env(env.unwrapped)


def test_a_seed_repeats_and_another_differs(envs) -> None:
    def starts(seed: int) -> np.ndarray:
        envs.reset(seed=seed)
        return np.stack([envs.unwrapped.world.x, envs.unwrapped.world.y, envs.unwrapped.world.direction])

    assert np.array_equal(starts(1), starts(1))
    assert not np.array_equal(starts(1), starts(2))


def test_episodes_restart_on_the_next_step(envs) -> None:
    """The last observation of an episode is its own; the next call starts an episode whatever the action."""
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    rng = np.random.default_rng(0)
    obs, _ = envs.reset(seed=0)
    ended, time, ends = np.zeros(8, bool), np.zeros(8, int), {"terminated": 0, "truncated": 0}
    for _ in range(400):
        assert obs in envs.observation_space
        obs, reward, terminated, truncated, info = envs.step(rng.integers(0, 7, 8))
        assert reward.dtype == np.float64
        assert info == {}
        assert not (ended & (terminated | truncated)).any()
        assert (reward[ended] == 0).all()
        time = np.where(ended, 0, time + 1)
        np.testing.assert_array_equal(envs.unwrapped.world.time, time)
        np.testing.assert_array_equal(reward > 0, terminated)
        np.testing.assert_array_equal(truncated, time == 100)
        ended = terminated | truncated
        ends["terminated"] += int(terminated.sum())
        ends["truncated"] += int(truncated.sum())
    assert min(ends.values()) > 3


def test_no_start_is_used_twice(envs, monkeypatch) -> None:
    """Every start taken, over several pools, is the next one of its pool, and pools come from different keys."""
    face_env = envs.unwrapped
    envs.reset(seed=3)
    taken = []
    for _ in range(200):
        before = face_env.used
        pool, ended = face_env.pools, np.ones(8, bool)
        face_env.ended = ended
        index = face_env._take()
        expected = before if face_env.pools == pool else 0
        np.testing.assert_array_equal(index, expected + np.arange(8))
        taken += [(face_env.pools, i) for i in index.tolist()]
    assert len(set(taken)) == len(taken)
    assert face_env.pools > 3
    first, second = (face._starts(face_env.env, 256)(key) for key in jax.random.split(face_env.key))
    assert not np.array_equal(first.x, second.x)


@pytest.mark.parametrize(
    ("actions", "reason"),
    [
        (np.full(8, 7), "0 .. 6"),
        (np.full(8, -1), "0 .. 6"),
        (np.zeros(7, int), "shape"),
        (np.zeros(8), "integers"),
    ],
)
def test_bad_actions_are_refused(envs, actions: np.ndarray, reason: str) -> None:
    envs.reset(seed=0)
    with pytest.raises(ValueError, match=reason):
        envs.step(actions)


def test_pictures_of_a_batch(envs) -> None:
    envs.reset(seed=0)
    frames = envs.render()
    assert len(frames) == 8
    assert all(frame.shape == (160, 160, 3) and frame.dtype == np.uint8 for frame in frames)
