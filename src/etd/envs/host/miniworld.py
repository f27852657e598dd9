"""MiniWorld's maze by the paper's rules: find a red box at the other end of a maze of n x n rooms, 64 x 64 pixels.

Forward steps of 0.6 (a fifth of a room), turns of 90 degrees, 24 steps per room. The box and the agent, which faces +x,
are in the centres of the two rooms farthest apart. The authors do not say which is where; here the box is in the one
farther from the corner where maze generation starts, so the agent often starts in that corner. Reaching the box pays
1 - 0.2 t / max_steps and ends the episode, even on its last step; the box counts as reached within 1.6257, the two
radii plus 1.1 steps.
"""

from __future__ import annotations

import sys
from collections import deque
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import numpy as np
import pyglet

from etd.envs.host.opengl import drawing

if sys.platform == "linux":
    pyglet.options["headless"] = True  # uses EGL, without a display; read when the rest of pyglet is imported
with drawing("MiniWorld"):  # it looks for OpenGL on import
    from miniworld.envs.maze import Maze
    from miniworld.opengl import FrameBuffer, Texture
    from miniworld.params import DEFAULT_PARAMS

OBSERVED = 64
PICTURE = 384
RULES = DEFAULT_PARAMS.no_random()
RULES.set("forward_step", 0.6)
RULES.set("turn_step", 90)


def make(name: str) -> FullMaze:
    with drawing(name):
        return FullMaze(int(name.removeprefix("MiniWorld-MazeS").removesuffix("-v0")))


class FullMaze(Maze):
    """A maze of ``size`` x ``size`` rooms. The seed determines its episodes, whatever else runs in the process.

    miniworld gives every maze's display list the number 1, and pyglet shares these numbers between all windows of a
    process, so two mazes would show each other's walls. Here every maze has its own numbers and textures.
    """

    can_succeed = True

    def __init__(self, size: int) -> None:
        self.textures: dict[str, Any] = {}
        self.picture: FrameBuffer | None = None
        pyglet.gl.current_context = None  # nothing to share with
        with redirect_stdout(StringIO()):  # miniworld prints if it gets fewer samples than it asks for
            super().__init__(
                size,
                size,
                obs_width=OBSERVED,
                obs_height=OBSERVED,
                window_width=OBSERVED,  # its large buffer is not used
                window_height=OBSERVED,
                params=RULES,
                render_mode="rgb_array",
            )
        self.max_steps = self.max_episode_steps

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        self.shadow_window.switch_to()
        Texture.tex_cache = self.textures
        return super().reset(seed=seed, options=options)

    def step(self, action: int | np.int64) -> tuple[np.ndarray, float, bool, bool, dict]:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, float(reward), terminated, truncated, info

    def render(self) -> np.ndarray:
        """The maze from above and the agent's view, side by side."""
        self.shadow_window.switch_to()
        with redirect_stdout(StringIO()):
            self.picture = self.picture or FrameBuffer(PICTURE, PICTURE, 8)
        return np.hstack([self.render_top_view(self.picture), self.render_obs(self.picture)])

    def connect_rooms(self, room: Any, other: Any, **opening: float) -> None:
        super().connect_rooms(room, other, **opening)
        self.joined.setdefault(room, []).append(other)
        self.joined.setdefault(other, []).append(room)

    def _gen_world(self) -> None:
        self.joined: dict[Any, list[Any]] = {}
        super()._gen_world()  # places both at random
        end = _farthest(self.joined, self.rooms[0])
        self.box.pos = _centre(end)
        self.agent.pos, self.agent.dir = _centre(_farthest(self.joined, end)), 0.0


def _farthest(joined: dict[Any, list[Any]], start: Any) -> Any:
    """The last room that a breadth-first search reaches. From any room of a tree it is an end of a longest path."""
    seen, queue = {start}, deque([start])
    while queue:
        room = queue.popleft()
        new = [other for other in joined[room] if other not in seen]
        seen.update(new)
        queue.extend(new)
    return room


def _centre(room: Any) -> np.ndarray:
    return np.array([(room.min_x + room.max_x) / 2, 0.0, (room.min_z + room.max_z) / 2])
