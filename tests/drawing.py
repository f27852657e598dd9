"""Whether pictures of an environment can be had here."""

from __future__ import annotations

import os

from etd.envs import families

MUJOCO = ("dmc", "mujoco", "metaworld")


def can_draw(name: str) -> bool:
    """MuJoCo's need OpenGL; where there is none, making one of them leaves MUJOCO_GL at 'disable'. That this is said in
    a sentence is tested beside their other rules."""
    suite = families.find(name)
    return not (suite and suite.name in MUJOCO and os.environ.get("MUJOCO_GL") == "disable")
