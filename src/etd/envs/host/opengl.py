"""Pictures of MuJoCo without a display, and a sentence where there is no OpenGL."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from etd.core.errors import UserError

LIBRARIES = "libegl1 libgl1 libglu1-mesa libfreetype6 libfontconfig1"
"""What draws without a display, as Debian and Ubuntu call it; MiniWorld's windows want the last two for fonts."""


def headless() -> None:
    """Let MuJoCo draw by EGL, which needs no display, or not at all where EGL is not installed.

    MuJoCo's packages read MUJOCO_GL when they are imported, and stop there if they cannot have what it says; a user's
    own choice is kept. On systems other than Linux their defaults need no display.
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
    """What goes wrong in here is OpenGL; say so."""
    try:
        yield
    except UserError:  # which says what else it is
        raise
    except Exception as error:  # each package has its own kinds, down to AttributeError on a library that is not there
        raise UserError(
            f"{name} cannot be drawn: OpenGL without a display failed ({type(error).__name__}: {error}). "
            f"On Debian or Ubuntu: apt-get install {LIBRARIES}"
        ) from error
