"""A picture of the observation, for environments without ``render``."""

from __future__ import annotations

import numpy as np

from etd.core.types import EnvSpec

SIDE = 256
"""Approximate length of the shorter side in pixels."""


def of_observation(spec: EnvSpec, obs: np.ndarray) -> np.ndarray:
    """[height, width, 3] uint8: an image is enlarged, its channels as colours; a vector becomes bars around zero."""
    if spec.kind == "vector":
        return _bars(np.asarray(obs, np.float64).reshape(-1))
    shades = np.clip(np.asarray(obs, np.float64) / spec.obs_high, 0, 1)
    channels = shades.shape[-1]
    if channels > 3:  # more channels than colours: each gets its own shade, the last on top
        shades = (shades > 0) * (np.arange(channels) + 1) / channels
        shades = shades.max(-1, keepdims=True)
    colours = np.repeat(shades[..., :1], 3, -1) if shades.shape[-1] < 3 else shades
    zoom = max(1, SIDE // min(obs.shape[:2]))
    return (255 * colours).astype(np.uint8).repeat(zoom, 0).repeat(zoom, 1)


def _bars(values: np.ndarray) -> np.ndarray:
    values = np.nan_to_num(values)
    width = max(2, SIDE // len(values))
    largest = max(1.0, float(np.abs(values).max()))
    heights = np.rint(values / largest * (SIDE // 2 - 2)).astype(int)
    picture = np.full((SIDE, width * len(values), 3), 255, np.uint8)
    picture[SIDE // 2 - 1 : SIDE // 2 + 1] = 180
    for index, height in enumerate(heights):
        top, bottom = sorted((SIDE // 2, SIDE // 2 - height))
        picture[top:bottom, index * width : max(index * width + 1, (index + 1) * width - 1)] = (220, 40, 40)
    return picture
