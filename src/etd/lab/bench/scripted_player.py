"""Scripted play in Farama's MiniGrid, so that comparisons cover what random play never reaches."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from etd.envs.minigrid.actions import ACTIONS, DROP, FORWARD, LEFT, PICKUP, RIGHT, TOGGLE
from etd.envs.minigrid.world import STEP_X, STEP_Y

SIDES = list(zip(STEP_X, STEP_Y, strict=True))


class ScriptedPlayer:
    """Chooses actions: walk to an object, a door or the goal and use it, again and again.

    Errands are drawn at random from what is reachable: keys are picked up, doors opened, closed and unlocked, boxes
    opened or carried, balls moved out of the way, objects dropped, and missions occasionally completed.
    """

    def __init__(self, env: Any, rng: np.random.Generator) -> None:
        self.env, self.rng = env, rng
        self.plan: list[int] = []

    def __call__(self) -> int:
        if self.rng.random() < 0.05:
            self.plan = []
            return int(self.rng.integers(ACTIONS))
        if not self.plan:
            self.plan = self._errand()
        return self.plan.pop(0)

    def _errand(self) -> list[int]:
        env, paths = self.env, self._paths()
        if env.carrying is not None and self.rng.random() < 0.3:
            return [int(self.rng.integers(2)), DROP]
        wanted = [
            (path, (x + dx, y + dy))
            for (x, y), path in paths.items()
            for dx, dy in SIDES
            if (thing := env.grid.get(x + dx, y + dy)) is not None and thing.type != "wall"
        ]
        if not wanted:
            return [int(self.rng.integers(3))]
        path, end = wanted[self.rng.integers(len(wanted))]
        return self._walk([*path, end]) + self._use(env.grid.get(*end))

    def _use(self, thing: Any) -> list[int]:
        if thing.type == "door":
            return [FORWARD] if thing.is_open and self.rng.random() < 0.7 else [TOGGLE]
        if thing.type == "box":
            return [PICKUP if self.rng.random() < 0.4 else TOGGLE]
        return [PICKUP] if thing.can_pickup() else [FORWARD]

    def _paths(self) -> dict[tuple[int, int], list[tuple[int, int]]]:
        """The reachable cells, each with its path (the agent's own cell first)."""
        here = (int(self.env.agent_pos[0]), int(self.env.agent_pos[1]))
        paths, front = {here: [here]}, [here]
        while front:
            x, y = front.pop(0)
            for dx, dy in SIDES:
                beside = (x + dx, y + dy)
                thing = self.env.grid.get(*beside)
                enterable = thing is None or (thing.can_overlap() and thing.type not in ("goal", "lava"))
                if enterable and beside not in paths:
                    paths[beside] = [*paths[x, y], beside]
                    front.append(beside)
        return paths

    def _walk(self, path: list[tuple[int, int]]) -> list[int]:
        """Turns and steps along ``path``, ending before its last cell and facing it."""
        actions, direction = [], int(self.env.agent_dir)
        for index, ((x, y), (next_x, next_y)) in enumerate(pairwise(path)):
            wanted = SIDES.index((next_x - x, next_y - y))
            turns = (wanted - direction) % 4
            actions += [LEFT] if turns == 3 else [RIGHT] * turns
            direction = wanted
            if index < len(path) - 2:
                actions.append(FORWARD)
        return actions
