"""Crafter (Hafner, 2021): an open world seen from above, 64 x 64 pixels, 17 actions, 22 achievements.

Reward is +1 in a step that unlocks achievements not yet unlocked in this episode, however many, and a tenth of the
change of health; ``Crafter-NoLife-v0`` leaves out the health. An episode ends by death or after 10,000 steps. Two
things differ from the package, neither of them a rule of the game: creatures are drawn by lot in the order of where
they stand, not in the order of a Python set, so that a seed and actions give the same episode in every process; and
drawing a picture does not use up random numbers of the game.
"""

from __future__ import annotations

from typing import Any

import crafter
import gymnasium
import numpy as np

ACHIEVEMENTS = tuple(crafter.constants.achievements)
PICTURE = 576
"""Pixels along the side of a rendered picture: 64 for each of 9 tiles."""


def make(name: str, max_steps: int = 10_000) -> CrafterEnv:
    return CrafterEnv(life=name == "Crafter-v0", max_steps=max_steps)


class _Game(crafter.Env):
    """The package's game with an order among creatures."""

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
        self.game = _Game(length=max_steps, seed=int(self.np_random.integers(1 << 31)))
        self.observation_space = gymnasium.spaces.Box(0, 255, (64, 64, 3), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(len(self.game.action_names))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self.game._seed, self.game._episode = seed, 0
        return self.game.reset(), {"achieved": np.zeros(len(ACHIEVEMENTS), bool)}

    def step(self, action: int | np.int64) -> tuple[np.ndarray, float, bool, bool, dict]:
        """``info["achieved"]`` [22] bool: what this episode has unlocked so far, in the order of ``achievements``."""
        before = len(self.game._unlocked)
        obs, reward, _, info = self.game.step(int(action))
        if not self.life:
            reward = float(len(self.game._unlocked) > before)
        achieved = np.array([info["achievements"][name] > 0 for name in ACHIEVEMENTS])
        return obs, float(reward), info["discount"] == 0, self.game._step >= self.max_steps, {"achieved": achieved}

    def render(self) -> np.ndarray:
        random = self.game._world.random
        state = random.get_state()  # the dark of night is drawn with the game's random numbers
        picture = self.game.render((PICTURE, PICTURE))
        random.set_state(state)
        return picture
