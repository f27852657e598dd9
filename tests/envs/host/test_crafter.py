"""Crafter: rewards by their rule, ends by their kind, the same episode in every process."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from etd.envs import families, host

if why := families.find("Crafter-v0").absence():
    pytest.skip(why, allow_module_level=True)

PLAY = """
import hashlib, sys
import numpy as np
from etd.envs import host

clutter = [object() for _ in range(int(sys.argv[1]))]  # moves what comes after it in memory
env = host.make("Crafter-v0")
digest, rng = hashlib.sha256(env.reset(seed=7)[0].tobytes()), np.random.default_rng(0)
for _ in range(400):
    obs, reward, terminated, truncated, info = env.step(rng.integers(17))
    digest.update(obs.tobytes() + repr((reward, terminated)).encode() + info["achieved"].tobytes())
    if terminated or truncated:
        digest.update(env.reset()[0].tobytes())
print(digest.hexdigest())
"""


@pytest.mark.parametrize("name", ["Crafter-v0", "Crafter-NoLife-v0"])
def test_reward_by_its_rule(name) -> None:
    env, rng = host.make(name), np.random.default_rng(0)
    _, info = env.reset(seed=3)
    assert not info["achieved"].any()
    health, achieved, paid = 9, info["achieved"], []
    for _ in range(400):
        _, reward, terminated, truncated, info = env.step(rng.integers(17))
        assert (info["achieved"] >= achieved).all()
        unlocked = (info["achieved"] & ~achieved).any()
        change = env.game._player.health - health if name == "Crafter-v0" else 0
        assert reward == pytest.approx(unlocked + change / 10)
        paid.append((unlocked, change))
        health, achieved = env.game._player.health, info["achieved"]
        if terminated or truncated:
            _, info = env.reset()
            health, achieved = 9, info["achieved"]
            assert not achieved.any()
    assert any(unlocked for unlocked, _ in paid)
    assert any(change for _, change in paid) == (name == "Crafter-v0")


def test_achievements_have_their_names() -> None:
    env = host.make("Crafter-v0")
    assert len(env.achievements) == 22
    env.reset(seed=0)
    env.game._player.achievements["collect_wood"] += 2
    _, reward, _, _, info = env.step(0)
    assert reward == 1.0
    assert [name for name, has in zip(env.achievements, info["achieved"], strict=True) if has] == ["collect_wood"]


def test_death_is_an_end_and_time_is_not() -> None:
    env = host.make("Crafter-v0", max_steps=5)
    env.reset(seed=0)
    ends = [env.step(0)[2:4] for _ in range(5)]
    assert ends == [(False, False)] * 4 + [(False, True)]
    env.reset()
    env.game._player.health = 0
    assert env.step(0)[2:4] == (True, False)
    assert host.make("Crafter-v0").max_steps == 10_000


def test_worlds_are_the_packages() -> None:
    import crafter

    env, original = host.make("Crafter-v0"), crafter.Env(seed=5)
    np.testing.assert_array_equal(env.reset(seed=5)[0], original.reset())
    np.testing.assert_array_equal(env.reset()[0], original.reset())


def test_pixels_are_the_packages() -> None:
    """Anywhere in the world, by day, at night and asleep, in both sizes."""
    from crafter.engine import LocalView

    env, rng = host.make("Crafter-v0"), np.random.default_rng(0)
    env.reset(seed=0)
    game = env.game
    original = LocalView(game._world, game._textures, [9, 7])
    for pos in [(0, 0), (63, 63), (0, 63), (63, 0), *rng.integers(0, 64, (60, 2))]:
        game._player.pos = np.array(pos)
        game._player.sleeping = bool(rng.integers(2))
        game._world.daylight = rng.uniform()
        for unit in ([7, 7], [64, 64]):
            state = game._world.random.get_state()
            expected = original(game._player, np.array(unit))
            game._world.random.set_state(state)
            np.testing.assert_array_equal(game._local_view(game._player, np.array(unit)), expected)


def test_drawing_the_night_changes_nothing() -> None:
    """The package darkens the night with the game's own random numbers."""
    env = host.make("Crafter-v0")

    def nights(draw: bool) -> list[np.ndarray]:
        env.reset(seed=1)
        env.game._step = 230
        seen = []
        for _ in range(10):
            if draw:
                env.render()
            seen.append(env.step(0)[0])
        return seen

    np.testing.assert_array_equal(nights(False), nights(True))


def test_two_processes_play_the_same_episode() -> None:
    runs = [subprocess.Popen([sys.executable, "-c", PLAY, n], stdout=subprocess.PIPE) for n in ("0", "100003")]
    first, second = (run.communicate()[0] for run in runs)
    assert len(first) == 65
    assert first == second
