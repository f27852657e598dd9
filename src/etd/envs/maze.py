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
from importlib.resources import files
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from etd.core.errors import UserError, unknown
from etd.core.keys import named
from etd.core.limits import is_whole
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
        if not isinstance(self.text, str):
            raise UserError(f"{self.text!r} is not the drawing of a maze. Pass its text.")
        rows = parse(self.text)
        if not is_whole(self.length, 1):
            raise UserError(f"A maze's episode cannot take {self.length!r} steps. Give it at least 1.")
        for what, cell in (("start", self.start), ("goal", self.goal)):
            if cell is None:
                continue
            if not (isinstance(cell, tuple | list) and len(cell) == 2 and all(isinstance(n, int) for n in cell)):
                raise UserError(f"The {what} {cell!r} is not a cell. Give its line and column, as in (1, 1).")
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
    grid = _tables(rows)
    if not grid.cells:
        last = f"line {first + len(rows)}, column {len(rows[0])}"
        raise UserError(f"Line {first + 1}, column 1 to {last}: only walls. A maze needs a free cell, '{GROUND}'.")
    piece = _pieces(grid.moves)
    main = piece[np.bincount(piece)[piece].argmax()]  # the first of the largest
    if (piece != main).any():
        lost, found = (grid.cells[int(cells.argmax())] for cells in (piece != main, piece == main))
        other = f"line {found[0] + first + 1}, column {found[1] + 1}"
        raise UserError(
            f"Line {lost[0] + first + 1}, column {lost[1] + 1}: this cell and the one at {other} are not connected. "
            "Open a path between them."
        )
    return rows


def _grid(text: str) -> _Grid:
    return _tables(parse(text))


@lru_cache(maxsize=64)
def _tables(rows: tuple[str, ...]) -> _Grid:
    free = np.array([[letter != WALL for letter in line] for line in rows])
    numbers = np.where(free, free.cumsum().reshape(free.shape) - 1, -1).astype(np.int32)
    cells = tuple((row, column) for row, column in np.argwhere(free).tolist())
    moves = [[numbers[_neighbour(rows, cell, action)] for action in range(len(MOVES))] for cell in cells]
    return _Grid(cells, numbers, np.array(moves, np.int32))


def _neighbour(rows: tuple[str, ...], cell: Position, action: int) -> Position:
    """Where an action leads from a free cell."""
    kind = rows[cell[0]][cell[1]]
    down, right = MOVES[CONVEYORS.index(kind) if kind in CONVEYORS else action]
    row, column = cell[0] + down, cell[1] + right
    inside = 0 <= row < len(rows) and 0 <= column < len(rows[0])
    return (row, column) if inside and rows[row][column] != WALL else cell


def _pieces(moves: np.ndarray) -> np.ndarray:
    """[S] for every cell the number of its piece; no move [S, 4] joins two pieces."""
    from scipy.sparse import csgraph, csr_array  # here, since importing it takes a tenth of a second

    states, actions = moves.shape
    ways = csr_array((np.ones(moves.size), moves.ravel(), np.arange(0, moves.size + 1, actions)), (states, states))
    return csgraph.connected_components(ways, directed=False)[1]


# By name ---------------------------------------------------------------------------------------------------------

_GOALS = {"Spiral": (9, 7), "Interlocked": (1, 1), "Hard": (10, 10), "HardSmall": (10, 1), "OneWay": (9, 1)}
MAZES: dict[str, tuple[str, Position]] = {
    name: ((files("etd.envs") / "mazes" / f"{name}.txt").read_text(), goal) for name, goal in _GOALS.items()
}
"""Text and goal by name. OneWay is four rooms in a ring that turns clockwise: the next room is one passage away, the
one before it three."""

_NAMED = {f"Maze-{name}{end}-v0": (name, bool(end)) for name in MAZES for end in ("", "-Noisy")}
IDS = tuple(_NAMED)


def make(name: str) -> Maze:
    """The maze with an id such as Maze-Spiral-v0, or Maze-Spiral-Noisy-v0 for walls of random colours."""
    if name not in _NAMED:
        raise unknown("maze", name, IDS, "See `etd list environments`.")
    layout, noise = _NAMED[name]
    text, goal = MAZES[layout]
    return Maze(text, goal, noise=noise, name=name)
