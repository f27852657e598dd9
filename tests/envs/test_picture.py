"""What is observed, drawn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from etd.core.types import Discrete, EnvSpec
from etd.envs.picture import SIDE, of_observation

GRID = EnvSpec("grid", (2, 4, 3), "float32", 10.0, Discrete(2), 10, 1, "grid")
VECTOR = replace(GRID, obs_shape=(4,), kind="vector")
RED, GREY, WHITE = (220, 40, 40), (180, 180, 180), (255, 255, 255)


def tiles(picture: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """[rows, columns, C] the colour of every cell, each of one colour throughout."""
    high, wide = picture.shape[0] // rows, picture.shape[1] // columns
    cells = picture.reshape(rows, high, columns, wide, 3).swapaxes(1, 2)
    np.testing.assert_array_equal(cells, np.broadcast_to(cells[:, :, :1, :1], cells.shape))
    return cells[:, :, 0, 0]


def test_an_image_is_enlarged_and_its_channels_are_colours(rng) -> None:
    obs = rng.uniform(0, 10, (2, 4, 3)).astype(np.float32)
    obs[0, 0] = -5, 5, 25  # below and above what the spec says
    picture = of_observation(GRID, obs)
    assert picture.dtype == np.uint8
    assert picture.shape == (SIDE, 2 * SIDE, 3)
    np.testing.assert_allclose(tiles(picture, 2, 4), np.clip(obs, 0, 10) * 25.5, atol=1)


def test_what_is_large_enough_stays_as_it_is(rng) -> None:
    obs = rng.integers(0, 256, (300, 280, 3)).astype(np.uint8)
    pixels = replace(GRID, obs_high=255.0, obs_shape=obs.shape, kind="pixels")
    np.testing.assert_allclose(of_observation(pixels, obs).astype(int), obs, atol=1)


@pytest.mark.parametrize("channels", [1, 2])
def test_one_channel_or_two_are_grey(channels: int) -> None:
    obs = np.zeros((2, 4, channels))
    obs[1, 2, 0] = 10
    shown = tiles(of_observation(GRID, obs), 2, 4)
    assert (shown[1, 2] == 255).all()
    assert shown.sum() == 3 * 255


def test_of_many_channels_each_has_its_shade_and_the_last_is_on_top() -> None:
    obs = np.zeros((2, 4, 5))
    obs[0, 0, 0] = obs[0, 1, 2] = obs[0, 2, 4] = 1
    obs[1, 0, [1, 3]] = 1
    shown = tiles(of_observation(GRID, obs), 2, 4)
    assert (shown == shown[..., :1]).all()
    np.testing.assert_allclose(shown[..., 0] / 51, [[1, 3, 5, 0], [4, 0, 0, 0]], atol=0.1)


def bars(values: list[float]) -> list[tuple[int, int]]:
    """(up, down) of the red bar of every value, in pixels."""
    picture = of_observation(VECTOR, np.array(values))
    assert picture.shape == (SIDE, SIDE, 3)
    red = (picture == RED).all(-1)
    rest = {tuple(colour) for colour in picture[~red].tolist()}
    assert rest <= {GREY, WHITE}
    columns = red[:, SIDE // 8 :: SIDE // 4]  # through the middle of each
    return [(int(column[: SIDE // 2].sum()), int(column[SIDE // 2 :].sum())) for column in columns.T]


def test_a_vector_is_drawn_as_bars_around_zero() -> None:
    full = SIDE // 2 - 2
    assert bars([4.0, -4.0, 2.0, 0.0]) == [(full, 0), (0, full), (full // 2, 0), (0, 0)]
    # Small numbers are not blown up, and what is no number is no bar.
    assert bars([0.5, -1 / 63, np.nan, 0.0]) == [(full // 2, 0), (0, 2), (0, 0), (0, 0)]
