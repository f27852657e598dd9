from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from etd.bonuses import BONUSES, ETD
from etd.core.errors import UserError
from etd.core.keys import named
from etd.envs import maze, maze3d, minigrid
from etd.lab.film import distance_map, watch
from etd.lab.film import frames as pictures
from etd.lab.runs import session
from etd.training import compiled
from etd.training.backend import Episode

EPISODES = 6


@pytest.fixture(scope="module")
def loaded(trained: Path):
    return session.load(trained)


@pytest.fixture(scope="module")
def film(loaded) -> pictures.Film:
    return watch.record(*loaded, 1, EPISODES, greedy=False)


@pytest.fixture(scope="module")
def episode(film: pictures.Film) -> Episode:
    return film.episode


def frames(file: Path) -> tuple[list[np.ndarray], list[int]]:
    shown, durations = [], []
    with Image.open(file) as film:
        for number in range(getattr(film, "n_frames", 1)):
            film.seek(number)
            shown.append(np.asarray(film.convert("RGB")).astype(int))
            durations.append(int(film.info["duration"]))
    return shown, durations


def test_first_success_is_recorded(loaded, episode: Episode) -> None:
    run, state = loaded
    played = compiled.make_player(run.experiment, EPISODES, False)(state, 1, named(state.key[1], "film"))
    assert played.outcome.success.any()
    first = next(e for e in range(EPISODES) if played.outcome.success[e])
    assert episode.success
    assert len(episode) == played.outcome.length[first]
    np.testing.assert_array_equal(episode.rewards, played.rollout.step.reward[: len(episode), first])
    assert episode.rewards[-1] > 0


def test_bonus_belongs_to_the_state_drawn_beside_it(loaded, episode: Episode) -> None:
    """b(s_t) = min_{k < t} d(s_k, s_t), from the drawn states alone."""
    run, state = loaded
    net = jax.tree.map(lambda leaf: leaf[1], state.learner.bonus.learner).net()
    obs = jax.vmap(run.experiment.env.make().observe)(jax.tree.map(jnp.asarray, episode.states))
    embedded = jax.jit(lambda obs: net.encode(net.trunk(obs)))(obs)
    distance = np.asarray(jax.jit(run.experiment.bonus.distance)(embedded, embedded))
    expected = [distance[:t, t].min() for t in range(1, len(episode) + 1)]
    np.testing.assert_allclose(episode.bonus, expected, rtol=1e-3, atol=1e-4)


def test_gif_has_every_step_and_holds_the_last(
    trained: Path, film: pictures.Film, episode: Episode, tmp_path: Path
) -> None:
    out = watch.film(trained, tmp_path / "new" / "film.gif", seed=4, episodes=EPISODES)
    shown, durations = frames(out)
    assert len(shown) == len(episode) + 1
    assert durations[-1] == 1500
    assert len(set(durations[:-1])) == 1
    for step in (0, len(episode) // 2, len(episode)):
        drawn = np.asarray(pictures.frame(film, step)).astype(int)
        assert np.abs(shown[step] - drawn).mean() < 3, f"frame {step} does not show step {step}"


def test_long_film_skips_steps_but_not_the_last(
    trained: Path, film: pictures.Film, episode: Episode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "FRAMES", 4)
    out = watch.film(trained, tmp_path / "film.gif", seed=4, episodes=EPISODES)
    shown, _ = frames(out)
    assert len(shown) == 4
    last = np.asarray(pictures.frame(film, len(episode))).astype(int)
    assert np.abs(shown[-1] - last).mean() < 3
    again = watch.film(trained, tmp_path / "again.gif", seed=4, episodes=EPISODES)
    assert again.read_bytes() == out.read_bytes()


def test_frame_is_even_and_shows_the_level(film: pictures.Film) -> None:
    picture = pictures.frame(film, 0)
    assert picture.width % 2 == picture.height % 2 == 0
    red, green, blue = np.moveaxis(np.asarray(picture).astype(int), -1, 0)
    goal = (green > red + 100) & (green > blue + 100)
    side = pictures.LEVEL // 5
    assert goal.sum() == pytest.approx(side**2, rel=0.1)


@pytest.mark.parametrize("bonus", [[0.0, 0.0, 0.0], [-3.0, -1.0, -2.0], [-1e-3, 1e6, 0.5], [1e-4, 2e-4, 0.0]])
def test_any_bonus_can_be_drawn(episode: Episode, bonus: list[float]) -> None:
    low, ticks, high = pictures._scale(np.array(bonus))
    assert low <= min(bonus)
    assert high >= max(bonus)
    assert 2 <= len(ticks) <= 7
    assert low - 1e-9 <= min(ticks) <= max(ticks) <= high


def test_best_seed_plays_unless_one_is_named(logged) -> None:
    run = logged(np.array([[0.9, 0.1], [0.2, 0.8], [0.5, np.nan]]))
    assert watch.choose(run, None) == 1
    assert watch.choose(run, 2) == 2
    with pytest.raises(UserError, match="no seed 7; it has seeds 0 to 2"):
        watch.choose(run, 7)


def test_mistakes_get_sentences(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"\.avi"):
        watch.film(trained, tmp_path / "film.avi")
    with pytest.raises(UserError, match="at least 1"):
        watch.film(trained, tmp_path / "film.gif", episodes=0)
    with pytest.raises(UserError, match="is not a run"):
        watch.film(tmp_path / "nowhere", tmp_path / "film.gif")
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(UserError, match=r"pip install 'etd\[video\]'"):
        watch.film(trained, tmp_path / "film.mp4")


def test_mp4(trained: Path, tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    out = watch.film(trained, tmp_path / "film.mp4", seed=4, episodes=EPISODES)
    assert out.read_bytes()[4:8] == b"ftyp"


# Looking inside --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def looked(loaded, episode: Episode) -> distance_map.Inside:
    run, state = loaded
    learner = jax.tree.map(lambda leaf: leaf[1], state.learner.bonus.learner)
    return distance_map.look(run.experiment.env.make(), run.experiment.bonus, learner, episode.states)


def test_the_nearest_state_before_makes_the_bonus(loaded, episode: Episode, looked: distance_map.Inside) -> None:
    """min_k d(s_k, s_t), where k is the state that is ringed."""
    run, state = loaded
    net = jax.tree.map(lambda leaf: leaf[1], state.learner.bonus.learner).net()
    obs = jax.vmap(run.experiment.env.make().observe)(jax.tree.map(jnp.asarray, episode.states))
    embedded = jax.jit(lambda obs: net.encode(net.trunk(obs)))(obs)
    distance = np.asarray(jax.jit(run.experiment.bonus.distance)(embedded, embedded))
    assert looked.nearest[0] == -1
    for t in range(1, len(episode) + 1):
        assert looked.nearest[t] < t
        np.testing.assert_allclose(distance[looked.nearest[t], t], episode.bonus[t - 1], rtol=1e-3, atol=1e-4)


def test_maps_cover_the_room_and_nothing_else(episode: Episode, looked: distance_map.Inside) -> None:
    room = np.zeros((5, 5), bool)
    room[1:4, 1:4] = True
    for t in range(len(episode) + 1):
        np.testing.assert_array_equal(np.isfinite(looked.maps[t]), room)
        here = tuple(looked.places[t])
        assert here == (int(episode.states.y[t]), int(episode.states.x[t]))
        assert looked.maps[t][here] < 2e-4  # d(s, s) is the floor


@pytest.mark.slow
def test_doors_and_objects_are_no_place_to_stand_but_no_barrier() -> None:
    env = minigrid.make("MiniGrid-DoorKey-8x8-v0")
    world, _ = env.reset(jax.random.key(0))
    world = jax.device_get(world)
    free, place = distance_map._reachable(env, world)
    kinds = world.grid & 15
    assert free[place]
    assert not free[(kinds == 2) | (kinds == 4) | (kinds == 5)].any()  # walls, the locked door, the key
    assert free[kinds == 8].all()  # the goal, behind the door


def test_distance_film(
    loaded,
    film: pictures.Film,
    episode: Episode,
    looked: distance_map.Inside,
    trained: Path,
    tmp_path: Path,
    monkeypatch,
) -> None:
    monkeypatch.setattr(watch, "record", lambda *_: film)  # recording is tested above
    shown, _ = frames(watch.film(trained, tmp_path / "deep.gif", seed=4, episodes=EPISODES, distance=True))
    assert len(shown) == len(episode) + 1
    assert shown[0].shape[1] > 1.4 * pictures.frame(film, 0).width
    deep = replace(film, inside=looked)
    for step in (0, len(episode)):
        assert np.abs(shown[step] - np.asarray(pictures.frame(deep, step)).astype(int)).mean() < 3
    assert any(np.abs(shown[0] - later).mean() > 1 for later in shown[1:])


def test_a_bonus_without_distance_is_named(loaded) -> None:
    run, _ = loaded
    with pytest.raises(UserError, match="bonus is rnd, which learns no distance"):
        distance_map.check(run.experiment.env.make(), BONUSES["rnd"]())


def test_mazes_are_looked_into_too(fill) -> None:
    env, bonus = maze.Maze("######\n#...##\n#.#..#\n######"), ETD(features=8, latent=8, embedding=8)
    learner = fill(lambda key: bonus.init(key, env.spec, 1)).learner
    states = maze.MazeState(np.array([0, 1, 2]), np.array([0, 1, 2]))
    seen = distance_map.look(env, bonus, learner, states)
    np.testing.assert_array_equal(np.isfinite(seen.maps[1]), env.index >= 0)
    assert [tuple(place) for place in seen.places] == [(1, 1), (1, 2), (1, 3)]


def test_first_person_mazes_have_a_distance_for_every_room(fill) -> None:
    env, bonus = maze3d.Maze3D(2), ETD(features=8, latent=8, embedding=8)
    learner = fill(lambda key: bonus.init(key, env.spec, 1)).learner
    start, _ = jax.tree.map(np.asarray, jax.jit(env.reset)(jax.random.key(0)))
    states = jax.tree.map(lambda leaf: leaf[None], start)
    seen = distance_map.look(env, bonus, learner, states)
    height, width = seen.maps[0].shape
    assert width == 2 * height
    rooms = [seen.maps[0][top : top + 12, left : left + 12] for top in (4, 17) for left in (4, 17)]
    values = [float(room[0, 0]) for room in rooms]
    for room, value in zip(rooms, values, strict=True):
        assert (room == value).all()
    assert np.isfinite(seen.maps[0]).sum() == 4 * 12**2
    assert len({round(value, 6) for value in values}) > 1
    # In the middle of its own room, where it sees what it sees: at distance zero.
    row, column = seen.places[0]
    assert seen.maps[0][row, column] == pytest.approx(0, abs=1e-4)
    assert (row - 4) % 13 == (column - 4) % 13 == 6
