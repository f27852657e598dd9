"""Crafter (Hafner, 2021): an open world seen from above, 64 x 64 pixels, 17 actions, 22 achievements.

The reward is +1 for a step that unlocks one or more new achievements of this episode, plus a tenth of the change in
health; ``Crafter-NoLife-v0`` leaves out health. An episode ends on death or after 10,000 steps. Three things differ
from the package, none of them a rule of the game: creatures are chosen at random in the order of their positions, not
in the order of a Python set, so seed and actions give the same episode in every process; rendering does not consume
the game's random numbers; and the same pixels are drawn faster.
"""

from __future__ import annotations

from typing import Any

import crafter
import gymnasium
import numpy as np

ACHIEVEMENTS = tuple(crafter.constants.achievements)
PICTURE = 576
"""Pixels per side of a rendered picture: 64 for each of 9 tiles."""


def make(name: str, max_steps: int = 10_000) -> CrafterEnv:
    return CrafterEnv(life=name == "Crafter-v0", max_steps=max_steps)


class _View(crafter.engine.LocalView):
    """The package's local view, with the ground drawn by one lookup instead of tile by tile."""

    def __init__(self, world: Any, textures: Any, grid: Any) -> None:
        super().__init__(world, textures, grid)
        self.tiles: dict[tuple[int, int], np.ndarray] = {}

    def __call__(self, player: Any, unit: np.ndarray) -> np.ndarray:
        """[9 unit, 7 unit, 3] ground and objects, then daylight and sleep; axes are x and y."""
        corner = player.pos - self._offset
        low, high = np.maximum(corner, 0), np.minimum(corner + self._grid, self._area)
        (left, top), (right, bottom) = low - corner, high - corner
        kinds = np.full(self._grid, -1)
        kinds[left:right, top:bottom] = self._world._mat_map[low[0] : high[0], low[1] : high[1]]
        canvas = self._tiles(unit)[kinds].swapaxes(1, 2).reshape(*self._grid * unit, 3)
        for thing in self._world.objects:
            x, y = place = thing.pos - corner
            if 0 <= x < self._grid[0] and 0 <= y < self._grid[1]:
                crafter.engine._draw_alpha(canvas, place * unit, self._textures.get(thing.texture, unit))
        canvas = self._light(canvas, self._world.daylight)
        return self._sleep(canvas) if player.sleeping else canvas

    def _tiles(self, unit: np.ndarray) -> np.ndarray:
        """[materials + 1, unit, unit, 3] the texture of each material; the last is the grey outside the world."""
        size = int(unit[0]), int(unit[1])
        if size not in self.tiles:
            names = [self._world._mat_names[kind] for kind in range(len(self._world._mat_names))]
            ground = [self._textures.get(name, unit)[..., :3] for name in names]
            self.tiles[size] = np.stack([*ground, np.full((*size, 3), 127, np.uint8)])
        return self.tiles[size]


class _Game(crafter.Env):
    """The package's game with creatures in a fixed order."""

    def _balance_chunk(self, chunk: tuple[int, ...], objects: set[Any]) -> None:
        super()._balance_chunk(chunk, sorted(objects, key=lambda thing: tuple(thing.pos)))


class CrafterEnv(gymnasium.Env[np.ndarray, np.int64]):
    """The game behind Gymnasium's interface. A seed gives the worlds of ``crafter.Env(seed=seed)``."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012  (Gymnasium's own declaration)
    achievements = ACHIEVEMENTS

    def __init__(self, life: bool = True, max_steps: int = 10_000) -> None:
        self.life = life
        self.max_steps = max_steps
        self.render_mode = "rgb_array"
        self.game = game = _Game(length=max_steps, seed=int(self.np_random.integers(1 << 31)))
        game._local_view = _View(game._world, game._textures, game._local_view._grid)
        self.observation_space = gymnasium.spaces.Box(0, 255, (64, 64, 3), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(len(self.game.action_names))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self.game._seed, self.game._episode = seed, 0
        return self.game.reset(), {"achieved": np.zeros(len(ACHIEVEMENTS), bool)}

    def step(self, action: int | np.int64) -> tuple[np.ndarray, float, bool, bool, dict]:
        """``info["achieved"]`` [22] bool: achievements unlocked so far this episode, in the order of
        ``achievements``."""
        before = len(self.game._unlocked)
        obs, reward, _, info = self.game.step(int(action))
        if not self.life:
            reward = float(len(self.game._unlocked) > before)
        achieved = np.array([info["achievements"][name] > 0 for name in ACHIEVEMENTS])
        return obs, float(reward), info["discount"] == 0, self.game._step >= self.max_steps, {"achieved": achieved}

    def render(self) -> np.ndarray:
        random = self.game._world.random
        state = random.get_state()  # rendering the night uses the game's random numbers
        picture = self.game.render((PICTURE, PICTURE))
        random.set_state(state)
        return picture
