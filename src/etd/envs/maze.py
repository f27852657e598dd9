"""Mazes drawn in ASCII: those of the paper's motivating example, or your own.

``#`` is a wall, ``.`` is free, ``< > ^ v`` are conveyors: the agent leaves one in its direction whatever the action.
The agent moves up, down, left or right, stays put when blocked, and sees the whole maze from above, itself in red.
An episode has a fixed length and continues after the goal. Layouts and goals are those of the authors' mazes, except
that their HardMaze has a fifth action (stay); ours have four. Cells are (row, column) from 0; error messages count
lines and columns from 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from etd.core.errors import UserError, unknown
from etd.core.keys import named
from etd.core.types import Array, Discrete, EnvSpec, Key, Transition

Position: TypeAlias = tuple[int, int]

MOVES: tuple[Position, ...] = ((-1, 0), (1, 0), (0, -1), (0, 1))
"""Up, down, left, right."""
WALL, GROUND, CONVEYORS = "#", ".", "^v<>"
"""Conveyors are in the order of MOVES."""
TILE = 16
"""Pixels per side of a rendered cell."""


class MazeState(NamedTuple):
    """The agent's cell and the time."""

    cell: Array
    """[] int32: an index into ``Maze.cells``"""
    time: Array
    """[] int32"""


class _Grid(NamedTuple):
    """A layout as tables."""

    cells: tuple[Position, ...]
    """the S free cells, row by row"""
    numbers: np.ndarray
    """[H, W] int32: a free cell's index, -1 in walls"""
    moves: np.ndarray
    """[S, 4] int32: where each action leads"""


@dataclass(frozen=True)
class Maze:
    """A maze from its text. Observations are [H, W, 3] float32: walls black, ground white, the agent red."""

    text: str
    goal: Position | None = None
    """the cell where the reward is 1 instead of 0"""
    start: Position | None = None
    """None draws it uniformly from the free cells"""
    length: int = 50
    """steps per episode"""
    noise: bool = False
    """every wall cell is black, blue, green or cyan, redrawn for every observation"""
    name: str = "Maze"

    def __post_init__(self) -> None:
        rows = parse(self.text)
        if self.length < 1:
            raise UserError(f"A maze's episode cannot take {self.length} steps. Give it at least 1.")
        for what, cell in (("start", self.start), ("goal", self.goal)):
            if cell is None:
                continue
            row, column = cell
            where = f"The {what} {tuple(cell)}, line {row + 1}, column {column + 1}, is"
            if not (0 <= row < len(rows) and 0 <= column < len(rows[0])):
                raise UserError(f"{where} outside the maze of {len(rows)} lines and {len(rows[0])} columns.")
            if rows[row][column] == WALL:
                raise UserError(f"{where} a wall. Choose a free cell.")

    @property
    def cells(self) -> tuple[Position, ...]:
        """The free cells, row by row; states and fingerprints are indices into them."""
        return _grid(self.text).cells

    @property
    def index(self) -> np.ndarray:
        """[H, W] int32: a free cell's index, -1 in walls."""
        return _grid(self.text).numbers

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(
            name=self.name,
            obs_shape=(*self.index.shape, 3),
            obs_dtype="float32",
            obs_high=1.0,
            action=Discrete(len(MOVES)),
            max_steps=self.length,
            shortest=self.length,
            kind="grid",
        )

    def reset(self, key: Key) -> tuple[MazeState, Array]:
        if self.start is None:
            cell = jax.random.randint(named(key, "start"), (), 0, len(self.cells))
        else:
            cell = jnp.int32(self.index[self.start])
        return MazeState(cell, jnp.int32(0)), self.observe(cell, key)

    def step(self, state: MazeState, action: Array, key: Key) -> tuple[MazeState, Transition]:
        """Moves are deterministic; ``key`` colours the walls."""
        cell, time = jnp.asarray(_grid(self.text).moves)[state.cell, action], state.time + 1
        goal = -1 if self.goal is None else self.index[self.goal]
        transition = Transition(
            next_obs=self.observe(cell, key),
            reward=(cell == goal).astype(jnp.float32),
            terminated=jnp.zeros((), bool),
            truncated=time >= self.length,
            fingerprint=cell.astype(jnp.uint32),
        )
        return MazeState(cell, time), transition

    def observe(self, cell: Array, key: Key) -> Array:
        """[H, W, 3] float32 the maze with the agent in ``cell``; with noise, ``key`` colours the walls."""
        index = jnp.asarray(self.index)
        ground, agent = index >= 0, index == cell
        red, rest = ground, jnp.stack([ground & ~agent] * 2, -1)
        if self.noise:  # four colours without red: green and blue are each on or off by a fair coin
            coins = jax.random.bernoulli(named(key, "walls"), 0.5, rest.shape)
            rest |= coins & ~ground[..., None]
        return jnp.concatenate([red[..., None], rest], -1).astype(jnp.float32)

    def render(self, state: MazeState) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """[H * TILE, W * TILE, 3]: walls dark, the goal green, conveyors with an arrow, the agent a red disc."""
        y, x = np.meshgrid(*[(np.arange(TILE) + 0.5) / TILE * 2 - 1] * 2, indexing="ij")
        disc, up = x**2 + y**2 < 0.5, (np.abs(x) < (y + 0.6) / 2) & (y < 0.6)
        arrows = {"^": up, "v": up[::-1], "<": up.T, ">": up.T[:, ::-1]}
        tiles = np.full((*self.index.shape, TILE, TILE, 3), 255, np.uint8)
        tiles[self.index < 0] = (40, 44, 52)
        if self.goal is not None:
            tiles[self.goal] = (95, 211, 141)
        rows = parse(self.text)
        for row, column in self.cells:
            if rows[row][column] in arrows:
                tiles[row, column][arrows[rows[row][column]]] = (150, 160, 175)
        tiles[self.cells[int(state.cell)]][disc] = (220, 40, 40)
        height, width = self.index.shape
        return tiles.swapaxes(1, 2).reshape(height * TILE, width * TILE, 3)


def transitions(maze: Maze) -> tuple[list[Position], np.ndarray]:
    """The free cells and the exact transition matrix [S, 4, S] float64: state, action, next state."""
    moves = _grid(maze.text).moves
    return list(maze.cells), np.eye(len(maze.cells))[moves]


# From text -------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def parse(text: str) -> tuple[str, ...]:
    """The rows of a maze, all of the same width and connected; a UserError names the line and column of any fault.

    Blank lines before and after are dropped. A maze with conveyors is connected if it would be with every move
    reversible.
    """
    lines = text.replace("\r\n", "\n").split("\n")
    kept = [number for number, line in enumerate(lines) if line.strip()]
    if not kept:
        raise UserError("Line 1, column 1: the maze is empty. Draw walls as '#' and free cells as '.'.")
    first = kept[0]
    rows = tuple(lines[first : kept[-1] + 1])
    for number, line in enumerate(rows, first + 1):
        for column, letter in enumerate(line, 1):
            if letter not in WALL + GROUND + CONVEYORS:
                known = f"'{WALL}' (wall), '{GROUND}' (free) and the conveyors {' '.join(CONVEYORS)}"
                raise UserError(f"Line {number}, column {column}: {letter!r} is not a maze symbol. Use {known}.")
        if len(line) != len(rows[0]):
            column = min(len(line), len(rows[0])) + 1
            widths = f"line {first + 1} has {len(rows[0])} characters, this line has {len(line)}"
            raise UserError(f"Line {number}, column {column}: {widths}. All lines of a maze must have the same length.")
    parts = _parts(rows)
    if not parts:
        last = f"line {first + len(rows)}, column {len(rows[0])}"
        raise UserError(f"Line {first + 1}, column 1 to {last}: only walls. A maze needs a free cell, '{GROUND}'.")
    if len(parts) > 1:
        main = max(parts, key=len)  # the first of the largest
        lost, found = min(next(part for part in parts if part is not main)), min(main)
        other = f"line {found[0] + first + 1}, column {found[1] + 1}"
        raise UserError(
            f"Line {lost[0] + first + 1}, column {lost[1] + 1}: this cell and the one at {other} are not connected. "
            "Open a path between them."
        )
    return rows


def _neighbour(rows: tuple[str, ...], cell: Position, action: int) -> Position:
    """Where an action leads from a free cell."""
    kind = rows[cell[0]][cell[1]]
    down, right = MOVES[CONVEYORS.index(kind) if kind in CONVEYORS else action]
    row, column = cell[0] + down, cell[1] + right
    inside = 0 <= row < len(rows) and 0 <= column < len(rows[0])
    return (row, column) if inside and rows[row][column] != WALL else cell


def _free(rows: tuple[str, ...]) -> tuple[Position, ...]:
    return tuple((r, c) for r, line in enumerate(rows) for c, letter in enumerate(line) if letter != WALL)


def _parts(rows: tuple[str, ...]) -> list[set[Position]]:
    """The connected components of the free cells, in the order of their first cells."""
    joined: dict[Position, set[Position]] = {cell: set() for cell in _free(rows)}
    for cell in joined:
        for action in range(len(MOVES)):
            other = _neighbour(rows, cell, action)
            joined[cell].add(other)
            joined[other].add(cell)
    parts: list[set[Position]] = []
    for cell in joined:
        if any(cell in part for part in parts):
            continue
        part, edge = {cell}, [cell]
        while edge:
            new = joined[edge.pop()] - part
            part |= new
            edge.extend(new)
        parts.append(part)
    return parts


@lru_cache(maxsize=64)
def _grid(text: str) -> _Grid:
    rows = parse(text)
    cells = _free(rows)
    numbers = np.full((len(rows), len(rows[0])), -1, np.int32)
    numbers[tuple(np.transpose(cells))] = np.arange(len(cells))
    moves = [[numbers[_neighbour(rows, cell, action)] for action in range(len(MOVES))] for cell in cells]
    return _Grid(cells, numbers, np.array(moves, np.int32))


# By name ---------------------------------------------------------------------------------------------------------

SPIRAL = """
#################
#...............#
###############.#
#.............#.#
#.###########.#.#
#.#.........#.#.#
#.#.#######.#.#.#
#.#.#.....#.#.#.#
#.#.#.###.#.#.#.#
#.#.#.#...#.#.#.#
#.#.#.#####.#.#.#
#.#.#.......#.#.#
#.#.#########.#.#
#.#...........#.#
#.#############.#
#...............#
#################
"""

INTERLOCKED = """
#############################
#.............#.............#
#...#######...#...#.....#...#
#...#.....#...#...#.....#...#
#...#.#####...#########.#...#
#...#.#...............#.#...#
#####.#...#########...#.#####
#...#.#...#.......#...#.#...#
#...#.#####...#####...#.#...#
#...#.......#.......#.....#.#
#.###.......#################
#...........................#
#...#######...#...#.....#...#
#...#.....#...#...#.....#...#
#...#.....#############.#...#
#...#.................#.#...#
#.###.....#########...#.#####
#...#.....#.......#...#.#...#
#...#.....#...#####...#.#...#
#...#.......................#
#############################
"""

HARD = """
################
#..............#
#..............#
#######..#######
#.....#........#
#.....#........#
#..#####..######
#..............#
#..............#
#..#..#..#######
#..#..#..#.....#
#..#..#..#.....#
#..####..####..#
#.....#........#
#.....#........#
################
"""

HARD_SMALL = """
################
#..............#
##############.#
#....#...#...#.#
#..#.#.#.#.#.#.#
#..#.#.#.#.#.#.#
#..#.#.#.#.#.#.#
#..#.#.#.#.#.#.#
#..#.#.#.#.#.#.#
#..#.#.#.#.#.#.#
#..#.#.#.#.#.#.#
#..#.#.#.#.#.#.#
#..#.#.#.#.#.#.#
#..#...#...#...#
#..#...#...#...#
################
"""

# Four rooms in a clockwise ring: the next room is one passage away, the previous one three.
ONE_WAY = """
#############
#...>>>>>...#
#...#####...#
#...#####...#
#^#########v#
#^#########v#
#^#########v#
#...#####...#
#...#####...#
#...<<<<<...#
#############
"""

MAZES: dict[str, tuple[str, Position]] = {
    "Spiral": (SPIRAL, (9, 7)),
    "Interlocked": (INTERLOCKED, (1, 1)),
    "Hard": (HARD, (10, 10)),
    "HardSmall": (HARD_SMALL, (10, 1)),
    "OneWay": (ONE_WAY, (9, 1)),
}
"""Text and goal by name."""

_NAMED = {f"Maze-{name}{end}-v0": (name, bool(end)) for name in MAZES for end in ("", "-Noisy")}
IDS = tuple(_NAMED)


def make(name: str) -> Maze:
    """The maze with an id such as Maze-Spiral-v0, or Maze-Spiral-Noisy-v0 for walls of random colours."""
    if name not in _NAMED:
        raise unknown("maze", name, IDS, "See `etd list environments`.")
    layout, noise = _NAMED[name]
    text, goal = MAZES[layout]
    return Maze(text, goal, noise=noise, name=name)
