"""An interactive page: click a cell of a maze to see the distance to all others, learned by each method and exact."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from etd.core import files
from etd.envs.maze import Maze
from etd.lab.report import page

FAR = 65535
"""Encodes infinity among the page's 16-bit numbers."""


def body(maze: Maze, distances: Mapping[str, np.ndarray], red: int, to: bool = False) -> str:
    """Markup and script with all distances [S, S] embedded, by name; nothing is fetched."""
    data = {
        "shape": list(maze.index.shape),
        "cells": [list(cell) for cell in maze.cells],
        "red": red,
        "to": to,
        "maps": [{"name": name, **pack(values)} for name, values in distances.items()],
    }
    # A tag in a name must not end the script.
    embedded = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return Path(__file__).with_name("clickable.html").read_text().replace("@DATA@", embedded)


def write(path: Path, title: str, content: str) -> Path:
    """Write the page around ``content``."""
    files.write(path, page.document(title, content, broad=True))
    return path


def pack(values: np.ndarray) -> dict[str, str | float]:
    """[S, S] as 16-bit steps from the lowest to the highest finite value."""
    finite = np.isfinite(values)
    low, high = float(values[finite].min()), float(values[finite].max())
    unit = (high - low) / (FAR - 1) or 1.0
    steps = np.where(finite, np.round((np.where(finite, values, low) - low) / unit), FAR).astype("<u2")
    return {"low": low, "unit": unit, "values": base64.b64encode(steps.tobytes()).decode()}
