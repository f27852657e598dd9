"""A maze from above, for films: MiniWorld's top view."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from etd.envs.maze3d.layout import Layout
from etd.envs.maze3d.view import BOX, PITCH, ROOM, TILE

SKY, WHITE, BLACK, RED, DARK_RED = (64, 209, 255), (219, 216, 211), (49, 49, 47), (255, 0, 0), (166, 0, 0)
MARGIN, RADIUS = 1.0, 0.4
AGENT = 4
"""How many cells of ``spread`` the agent is wide in a film."""


def draw(
    layout: Layout, place: np.ndarray, facing: np.ndarray, box: np.ndarray, angle: np.ndarray, side: int
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """[side, side, 3]: the floor, the box, and the agent as an arrow; places in twentieths of a metre."""
    size = len(layout.east)
    width = PITCH * size - (PITCH - ROOM) + 2 * MARGIN
    axis = (np.arange(side) + 0.5) * width / side - MARGIN
    x, z = np.meshgrid(axis, axis)
    column, row = (np.clip(np.floor(at / PITCH).astype(int), 0, size - 1) for at in (x, z))
    x_in, z_in = x - PITCH * column, z - PITCH * row
    in_x, in_z = (x_in >= 0) & (x_in < ROOM), (z_in >= 0) & (z_in < ROOM)
    between_x, between_z = (x_in >= ROOM) & layout.east[row, column], (z_in >= ROOM) & layout.south[row, column]
    free = (in_x & in_z) | (between_x & in_z) | (in_x & between_z)
    picture = np.full((side, side, 3), SKY, np.uint8)
    white = (np.floor(x / TILE) + np.floor(z / TILE)) % 2 == 0
    picture[free & white], picture[free & ~white] = WHITE, BLACK

    def turned(at: np.ndarray, radians: float) -> tuple[np.ndarray, np.ndarray]:
        """How far every pixel lies ahead and to the right of something at ``at`` turned counterclockwise."""
        right, down = x - at[0] / 20, z - at[1] / 20
        sine, cosine = math.sin(radians), math.cos(radians)
        return right * cosine - down * sine, right * sine + down * cosine

    ahead, right = turned(box, float(angle))
    picture[np.maximum(np.abs(ahead), np.abs(right)) < BOX / 2] = RED
    ahead, right = turned(place, float(facing) * math.pi / 2)
    back = -0.75 * RADIUS
    picture[(ahead > back) & (np.abs(right) < back / (back - RADIUS) * (RADIUS - ahead))] = DARK_RED
    return picture


def spread(rooms: np.ndarray) -> np.ndarray:
    """[H, 2 H] the values [n, n] of rooms on the cells of a film's picture, whose right half is the view: cells are as
    large as tiles, and NaN outside rooms."""
    size, room, pitch, margin = len(rooms), round(ROOM / TILE), round(PITCH / TILE), round(MARGIN / TILE)
    side = size * pitch - (pitch - room) + 2 * margin
    cells = np.full((side, 2 * side), np.nan)
    for row, column in np.ndindex(size, size):
        top, left = margin + row * pitch, margin + column * pitch
        cells[top : top + room, left : left + room] = rooms[row, column]
    return cells


def cell(place: np.ndarray) -> tuple[int, int]:
    """The row and column among those cells of an agent at ``place`` in twentieths of a metre."""
    x, z = ((place / 20 + MARGIN) / TILE).astype(int)
    return int(z), int(x)
