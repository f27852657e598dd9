"""MuJoCo rendering without a display, and a clear error if OpenGL is missing."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from etd.core.errors import UserError

LIBRARIES = "libegl1 libgl1 libglu1-mesa libfreetype6 libfontconfig1"
"""Debian and Ubuntu packages for rendering without a display; MiniWorld's windows need the last two for fonts."""


def headless() -> None:
    """Make MuJoCo render with EGL, which needs no display, or disable rendering if EGL is not installed.

    MuJoCo's packages read MUJOCO_GL on import and fail if that backend is missing; a value set by the user is kept. On
    systems other than Linux the defaults need no display.
    """
    if sys.platform != "linux" or "MUJOCO_GL" in os.environ:
        return
    try:
        ctypes.CDLL("libEGL.so.1")
        os.environ["MUJOCO_GL"] = "egl"
    except OSError:
        os.environ["MUJOCO_GL"] = "disable"


@contextmanager
def drawing(name: str) -> Iterator[None]:
    """Report any error inside as an OpenGL failure."""
    try:
        yield
    except UserError:  # already explains itself
        raise
    except Exception as error:  # packages raise their own kinds, even AttributeError for a missing library
        raise UserError(
            f"{name} cannot be drawn: OpenGL without a display failed ({type(error).__name__}: {error}). "
            f"On Debian or Ubuntu: apt-get install {LIBRARIES}"
        ) from error
