from __future__ import annotations

import sys
from io import StringIO
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from etd.core.errors import UserError
from etd.core.keys import named
from etd.lab import frames as pictures
from etd.lab import session, watch
from etd.train import trainer

EPISODES = 6


@pytest.fixture(scope="module")
def loaded(trained: Path):
    return session.load(trained)


@pytest.fixture(scope="module")
def episode(loaded) -> pictures.Episode:
    return watch.record(*loaded, 1, EPISODES, greedy=False)


def frames(file: Path) -> tuple[list[np.ndarray], list[int]]:
    shown, durations = [], []
    with Image.open(file) as film:
        for number in range(getattr(film, "n_frames", 1)):
            film.seek(number)
            shown.append(np.asarray(film.convert("RGB")).astype(int))
            durations.append(int(film.info["duration"]))
    return shown, durations


def test_first_success_is_recorded(loaded, episode: pictures.Episode) -> None:
    run, state = loaded
    played = trainer.player(run.experiment, EPISODES, False)(state, 1, named(state.key[1], "film"))
    assert played.success.any()
    first = next(e for e in range(EPISODES) if played.success[e])
    assert episode.success
    assert len(episode) == played.length[first]
    np.testing.assert_array_equal(episode.rewards, played.rollout.step.reward[: len(episode), first])
    assert episode.rewards[-1] > 0


def test_bonus_belongs_to_the_state_drawn_beside_it(loaded, episode: pictures.Episode) -> None:
    """b(s_t) = min_{k < t} d(s_k, s_t), from the drawn states alone."""
    run, state = loaded
    net = jax.tree.map(lambda leaf: leaf[1], state.minds.bonus.learner).net()
    obs = jax.vmap(episode.env.observe)(jax.tree.map(jnp.asarray, episode.states))
    embedded = jax.jit(lambda obs: net.encode(net.trunk(obs)))(obs)
    distance = np.asarray(jax.jit(run.experiment.bonus.distance)(embedded, embedded))
    expected = [distance[:t, t].min() for t in range(1, len(episode) + 1)]
    np.testing.assert_allclose(episode.bonus, expected, rtol=1e-3, atol=1e-4)


def test_gif_has_every_step_and_holds_the_last(trained: Path, episode: pictures.Episode, tmp_path: Path) -> None:
    out = watch.film(trained, tmp_path / "new" / "film.gif", seed=4, episodes=EPISODES)
    shown, durations = frames(out)
    assert len(shown) == len(episode) + 1
    assert durations[-1] == 1500
    assert len(set(durations[:-1])) == 1
    for step in (0, len(episode) // 2, len(episode)):
        drawn = np.asarray(pictures.frame(episode, step)).astype(int)
        assert np.abs(shown[step] - drawn).mean() < 3, f"frame {step} does not show step {step}"


def test_long_film_skips_steps_but_not_the_last(
    trained: Path, episode: pictures.Episode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "FRAMES", 4)
    out = watch.film(trained, tmp_path / "film.gif", seed=4, episodes=EPISODES)
    shown, _ = frames(out)
    assert len(shown) == 4
    last = np.asarray(pictures.frame(episode, len(episode))).astype(int)
    assert np.abs(shown[-1] - last).mean() < 3
    again = watch.film(trained, tmp_path / "again.gif", seed=4, episodes=EPISODES)
    assert again.read_bytes() == out.read_bytes()


def test_frame_is_even_and_shows_the_level(episode: pictures.Episode) -> None:
    picture = pictures.frame(episode, 0)
    assert picture.width % 2 == picture.height % 2 == 0
    red, green, blue = np.moveaxis(np.asarray(picture).astype(int), -1, 0)
    goal = (green > red + 100) & (green > blue + 100)
    side = pictures.LEVEL // 5
    assert goal.sum() == pytest.approx(side**2, rel=0.1)


@pytest.mark.parametrize("bonus", [[0.0, 0.0, 0.0], [-3.0, -1.0, -2.0], [-1e-3, 1e6, 0.5], [1e-4, 2e-4, 0.0]])
def test_any_bonus_can_be_drawn(episode: pictures.Episode, bonus: list[float]) -> None:
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


def test_evaluate_is_the_mean_over_played_episodes(trained: Path, loaded) -> None:
    run, state = loaded
    scores = watch.evaluate(trained, episodes=EPISODES)
    assert [row["seed"] for row in scores["seeds"]] == [3, 4]
    played = trainer.player(run.experiment, EPISODES, False)(state, 1, named(state.key[1], "evaluate"))
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
    watch.table(scores, Console(file=stream, width=100))
    text = stream.getvalue()
    assert "8 fresh levels per seed, likeliest actions" in text
    cells = [line.strip("│ ").split() for line in text.splitlines() if "%" in line]
    bare = [[cell for cell in line if cell != "│"] for line in cells]
    assert bare == [
        ["3", "25.0%", "0.125", "80.0"],
        ["4", "75.0%", "0.625", "20.0"],
        ["all", "50.0%", "0.375", "50.0"],
    ]


def test_mistakes_get_sentences(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"\.avi"):
        watch.film(trained, tmp_path / "film.avi")
    with pytest.raises(UserError, match="at least 1"):
        watch.film(trained, tmp_path / "film.gif", episodes=0)
    with pytest.raises(UserError, match="is not a run"):
        watch.evaluate(tmp_path / "nowhere")
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(UserError, match=r"pip install 'etd\[video\]'"):
        watch.film(trained, tmp_path / "film.mp4")


def test_mp4(trained: Path, tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    out = watch.film(trained, tmp_path / "film.mp4", seed=4, episodes=EPISODES)
    assert out.read_bytes()[4:8] == b"ftyp"
