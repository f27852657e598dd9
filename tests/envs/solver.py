"""A plan for a MiniGrid level, by search over what can be reached; levels without one come out as None.

Opening a door or a box and moving a ball aside never makes a level harder, so no choice has to be taken back: fulfil
the mission if it is within reach, else do whatever of these is possible, else give up. Plans are lists of actions and
are meant to be replayed in the environment, which is what proves a level solvable.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable

import numpy as np

from etd.envs.minigrid.actions import DROP, FORWARD, LEFT, PICKUP, RIGHT, TOGGLE, Rule
from etd.envs.minigrid.world import (
    BALL,
    BLUE,
    BOX,
    CLOSED,
    DOOR,
    EMPTY,
    GOAL,
    INSIDE_SHIFT,
    KEY,
    LOCKED,
    LOOK_MASK,
    OPEN,
    RED,
    STEP_X,
    STEP_Y,
    WALL,
    World,
    cell,
    colour_of,
    kind_of,
    state_of,
)

Cell = tuple[int, int]
Wanted = Callable[[int], bool]
SIDES = list(zip(STEP_X, STEP_Y, strict=True))


class Solver:
    """One level being solved: its grid as it changes, the agent, and the actions so far."""

    def __init__(self, world: World, rule: Rule) -> None:
        self.grid = np.array(world.grid)
        self.agent: Cell = (int(world.x), int(world.y))
        self.direction = int(world.direction)
        self.carried = int(world.carried)
        self.target = int(world.target)
        self.rule = rule
        self.actions: list[int] = []
        self.moved: set[int] = set()

    def solve(self) -> list[int] | None:
        while not self._finish():
            if not (self._open() or self._unlock() or self._clear()):
                return None
        return self.actions

    def _finish(self) -> bool:
        """Fulfils the mission if it is within reach."""
        if self.rule == "goal":
            return self._visit(lambda code: code == GOAL, FORWARD)
        if self.rule in ("pickup", "fetch"):
            return self._fetch(lambda code: code & LOOK_MASK == self.target)
        if self.rule == "doors":
            red, blue = cell(DOOR, RED, CLOSED), cell(DOOR, BLUE, CLOSED)
            return self._visit(lambda code: code == red, TOGGLE) and self._visit(lambda code: code == blue, TOGGLE)
        return self._unlock()

    def _open(self) -> bool:
        """Opens a door that is not locked, or a box that is not the target."""

        def shut(code: int) -> bool:
            box = kind_of(code) == BOX and code & LOOK_MASK != self.target
            return box or (kind_of(code) == DOOR and state_of(code) == CLOSED)

        return self._visit(shut, TOGGLE)

    def _unlock(self) -> bool:
        """Opens a locked door whose key is within reach or in hand."""
        for place in self._beside(lambda code: kind_of(code) == DOOR and state_of(code) == LOCKED):
            key = cell(KEY, colour_of(int(self.grid[place[1], place[0]])))
            if self.carried == key or self._fetch(lambda code, key=key: code == key):
                return self._visit(lambda code: kind_of(code) == DOOR and state_of(code) == LOCKED, TOGGLE, place)
        return False

    def _clear(self) -> bool:
        """Moves something that can be carried out of the way, each thing once."""
        for place in self._beside(lambda code: kind_of(code) in (KEY, BALL)):
            index = place[1] * self.grid.shape[0] + place[0]
            if index not in self.moved:
                self.moved.add(index)
                if self._free_hands(place) and self._visit(lambda code: True, PICKUP, place):
                    return True
        return False

    def _fetch(self, wanted: Wanted) -> bool:
        """Picks up a thing that is ``wanted``, laying down what is in hand first."""
        return any(self._free_hands(place) and self._visit(wanted, PICKUP, place) for place in self._beside(wanted))

    def _free_hands(self, then: Cell) -> bool:
        """Lays down what is carried where ``then`` can still be walked up to, if possible without cutting a path."""
        if self.carried == EMPTY:
            return True
        region = self._region()
        best, best_score = None, (0, 0)
        # Nothing cut off: the things within reach, with the one laid down, and every cell but its own.
        most = (self._things(region) + 1, len(region) - 1)
        for stand, (dx, dy) in itertools.product(region, SIDES):
            spot = (stand[0] + dx, stand[1] + dy)
            if self.grid[spot[1], spot[0]] != EMPTY or best_score == most:
                continue
            self.grid[spot[1], spot[0]] = self.carried
            left = self._region(stand)
            score = (self._things(left), len(left))
            self.grid[spot[1], spot[0]] = EMPTY
            if score > best_score and any((then[0] + a, then[1] + b) in left for a, b in SIDES):
                best, best_score = (stand, spot), score
        if best is None:
            return False
        self._walk(region, *best)
        self._act(DROP, best[1])
        self.moved.add(best[1][1] * self.grid.shape[0] + best[1][0])
        return True

    def _visit(self, wanted: Wanted, action: int, place: Cell | None = None) -> bool:
        """Walks up to a cell that is ``wanted`` (at ``place``, if given) and acts on it."""
        places = self._beside(wanted) if place is None else [place]
        region = self._region()
        for x, y in places:
            for dx, dy in SIDES:
                if (x - dx, y - dy) in region:
                    self._walk(region, (x - dx, y - dy), (x, y))
                    self._act(action, (x, y))
                    return True
        return False

    def _beside(self, wanted: Wanted) -> list[Cell]:
        """The wanted cells next to where the agent can walk."""
        found: dict[Cell, None] = {}
        for x, y in self._region():
            for dx, dy in SIDES:
                if wanted(int(self.grid[y + dy, x + dx])):
                    found[x + dx, y + dy] = None
        return list(found)

    def _things(self, region: dict[Cell, Cell | None]) -> int:
        """How many cells next to ``region`` hold something that can be used."""
        around = {(x + dx, y + dy) for x, y in region for dx, dy in SIDES}
        return sum(self.grid[y, x] not in (EMPTY, WALL) for x, y in around)

    def _region(self, begin: Cell | None = None) -> dict[Cell, Cell | None]:
        """The cells that can be walked to, each with the one before it on the way."""
        begin = begin or self.agent
        before: dict[Cell, Cell | None] = {begin: None}
        front = deque([begin])
        while front:
            x, y = front.popleft()
            for dx, dy in SIDES:
                code = int(self.grid[y + dy, x + dx])
                free = code == EMPTY or (kind_of(code) == DOOR and state_of(code) == OPEN)
                if free and (x + dx, y + dy) not in before:
                    before[x + dx, y + dy] = (x, y)
                    front.append((x + dx, y + dy))
        return before

    def _walk(self, region: dict[Cell, Cell | None], stand: Cell, facing: Cell) -> None:
        path = [facing, stand]
        while (step := region[path[-1]]) is not None:
            path.append(step)
        path.reverse()
        for here, ahead in itertools.pairwise(path):
            wanted = SIDES.index((ahead[0] - here[0], ahead[1] - here[1]))
            turns = (wanted - self.direction) % 4
            self.actions += [LEFT] if turns == 3 else [RIGHT] * turns
            self.direction = wanted
            if ahead != facing:
                self.actions.append(FORWARD)
        self.agent = stand

    def _act(self, action: int, place: Cell) -> None:
        """Takes ``action`` on the cell ahead and keeps the model up to date."""
        x, y = place
        code = int(self.grid[y, x])
        self.actions.append(action)
        if action == TOGGLE:
            self.grid[y, x] = (
                cell(DOOR, colour_of(code), OPEN) if kind_of(code) == DOOR else (code >> INSIDE_SHIFT) or EMPTY
            )
        elif action == PICKUP:
            self.grid[y, x], self.carried = EMPTY, code
        elif action == DROP:
            self.grid[y, x], self.carried = self.carried, EMPTY
