"""Distances learned from random walks in a maze, compared with the exact ones: the paper's first argument.

The data are walks of uniformly random actions, each one episode. ETD and its rivals are trained on them with their own
examples, losses and networks, then queried for the distance between any two cells:

    etd       the quasimetric d(x -> y), the only one meant to count steps
    inverse   || phi(x) - phi(y) ||, phi an embedding that predicts the action between two successive states
    ec        -log C(x, y), C the likelihood that two states are few steps apart

Departures from a training run, the same for all learners: the trunk is the one for maps; there are no norm layers and
no recurrent states; every minibatch is drawn afresh; every entry of an observation is standardised over the walks,
since views of the maze from above differ in one cell only; the learning rate decays to zero, so that the result does
not depend on the last minibatches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from scipy.sparse.csgraph import connected_components

from etd.bonuses import EC, ETD, LearnedBonus, energies
from etd.bonuses.base import BonusState
from etd.bonuses.inverse import Inverse
from etd.bonuses.representations import RecurrentBonus
from etd.core import files
from etd.core.errors import UserError, unknown
from etd.core.keys import named
from etd.core.limits import SEEDS, is_whole
from etd.core.types import Array, EnvSpec, Key, PyTree, Rollout
from etd.envs.maze import MAZES, Maze, MazeState, Position, transitions
from etd.lab.mazes import exact
from etd.nets.blocks import NormKind
from etd.nets.cells import NoCell
from etd.nets.fit import adam
from etd.nets.model import Learner, descend
from etd.nets.trunks import ConvTrunk, Trunk
from etd.training import memory

MAP_LAYERS = ((8, 2, 1), (16, 2, 1), (16, 2, 1))
"""(outputs, kernel, stride) of each convolution, for a whole maze from above, several times the size of a grid view:
the grid's layers with fewer channels, a tenth of the arithmetic."""
CHUNK = 100
"""Training steps between two updates of the progress bar."""
ENERGIES = ("cos", "l2", "mrn", "mrn+potential")
LOSSES = ("forward", "backward", "symmetric")
MINIBATCH, LEARNING_RATE = 128, 1e-3
FAINTEST = 0.1
"""The smallest standard deviation that an entry is divided by; otherwise cells seen once or never would dominate."""
CONTRAST = 16.0
"""Factor on standardised entries. Distances that start near zero grow only until far cells are distinguishable, which
leaves the order of far cells to chance; those that start large shrink along the walks. Mean rank correlation from the
red square of the spiral, 100 walks, three seeds: 0.45 with 1, 0.86 with 4, 0.93 with 16."""


@dataclass(frozen=True)
class MapTrunk(Trunk):
    """For mazes seen from above."""

    def build(self, spec: EnvSpec, features: int, norm: NormKind) -> nnx.Module:
        return ConvTrunk(spec, MAP_LAYERS, features, norm)


class Walks(NamedTuple):
    """N walks of T steps, as frames and as a rollout whose observations are indices of frames."""

    frames: Array
    """[(T+1) * N, ...] standardised observations"""
    rollout: Rollout
    """its observations are uint32: indices into ``frames``"""
    cells: Array
    """[T+1, N] the cells visited"""
    mean: Array
    scale: Array


@dataclass(frozen=True)
class Distances:
    """Learned and exact distances between all S cells of a maze, [S, S]: from the row's cell to the column's. Returned
    by ``etd.distance``.

    >>> [name for name in Distances.__annotations__ if name in ("maze", "learned", "successor")]
    ['maze', 'learned', 'successor']
    """

    maze: Maze
    walks: int
    discount: float
    seeds: tuple[int, ...]
    learned: dict[str, np.ndarray]
    """by learner: [K, S, S] float32, K seeds"""
    path: np.ndarray
    """[S, S] the fewest steps; infinite where there is no path"""
    successor: np.ndarray
    """[S, S] the exact successor distance under uniformly random actions"""
    time: np.ndarray
    """[S, S] expected steps under uniformly random actions"""
    pieces: tuple[int, ...]
    """by seed: the number of connected pieces of the maze if only the steps taken count; the data do not connect
    them"""

    @property
    def cells(self) -> tuple[Position, ...]:
        return self.maze.cells


def distance(
    maze: str | Path | Maze = "Spiral",
    *,
    walks: int = 100,
    length: int = 50,
    discount: float = 0.99,
    learners: dict[str, LearnedBonus] | None = None,
    energy: str = "mrn+potential",
    loss: str = "symmetric",
    seeds: int = 5,
    seed: int = 0,
    steps: int = 600,
    noise: bool = False,
    start: Position | None = None,
    tell: Callable[[str], None] = lambda words: None,
) -> Distances:
    """Walk, learn and measure. ``maze`` is a name such as Spiral, a file with a drawing, or a Maze.

    ``seeds`` of walks, weights and minibatches count up from ``seed``. The default ``learners`` are inverse dynamics,
    EC's likelihood and ETD with this ``energy`` and ``loss``. ``tell`` is called after every CHUNK of training.

    >>> found = distance("OneWay", walks=10, seeds=1, steps=1, learners={"etd": temporal(0.99)})
    >>> found.learned["etd"].shape[0], found.learned["etd"].ndim  # [seeds, cells, cells]
    (1, 3)
    """
    check_counts(walks=walks, seeds=seeds, steps=steps)
    if not is_whole(seed, 0, SEEDS - seeds):
        raise UserError(f"seed = {seed!r} is out of range: it must be at least 0, and seed + seeds at most {SEEDS}.")
    place = find(maze, length, noise, start)
    if min(place.index.shape) < 2:
        raise UserError("A maze of one line or column is too narrow for convolutions. Draw walls around it.")
    cells, seen = len(place.cells), 4 * place.spec.obs_size
    tables = f"The exact distances in a maze of {cells:,} free cells"
    memory.refuse_arrays(tables, 4 * cells**2, 8, "Draw a smaller maze.")
    memory.refuse_arrays(f"{walks:,} walks of {length:,} steps", walks * (length + 1), seen, "Ask for fewer.")
    _, dynamics = transitions(place)
    chain = exact.policy_matrix(dynamics)
    successor = exact.successor_distance(chain, discount)  # refuses a discount outside (0, 1)
    chosen = rivals(length, discount, energy, loss) if learners is None else learners
    numbers = tuple(range(seed, seed + seeds))
    learned = {
        name: np.stack([learn(place, bonus, walks, steps, n, partial(tell, name)) for n in numbers])
        for name, bonus in chosen.items()
    }
    paths, times = exact.shortest_path(dynamics), exact.hitting_time(chain)
    parts = tuple(pieces(place, walks, n) for n in numbers)
    return Distances(place, walks, discount, numbers, learned, paths, successor, times, parts)


def check_counts(**counts: Any) -> None:
    """A UserError if one of these is not a whole number from 1."""
    for what, count in counts.items():
        if not is_whole(count, 1):
            raise UserError(f"Nothing can be learned from {count!r} {what}. Ask for at least 1 and fewer than {SEEDS}.")


def pieces(maze: Maze, walks: int, seed: int) -> int:
    """Number of connected pieces of the maze in the walks of this seed; a cell never visited is its own piece."""
    cells = np.asarray(walk(maze, walks, named(jax.random.key(seed), "walks")).cells)
    ways = np.zeros((len(maze.cells),) * 2, bool)
    ways[cells[:-1], cells[1:]] = True
    return int(connected_components(ways, directed=False)[0])


def find(maze: str | Path | Maze, length: int = 50, noise: bool = False, start: Position | None = None) -> Maze:
    """The maze of this name or in this file, with episodes of ``length`` steps."""
    if not isinstance(maze, str | Path | Maze):
        raise UserError(f"{maze!r} is not a maze. Pass a name, a file with a drawing, or a Maze.")
    if isinstance(maze, Maze):
        return replace(maze, length=length, noise=noise or maze.noise, start=start or maze.start)
    name = str(maze)
    if name in MAZES:
        text, goal = MAZES[name]
        return Maze(text, goal, start, length, noise, name)
    with files.told(Path(name), "read"):
        files.refuse_unseen(Path(name))
        if not Path(name).is_file():
            raise unknown("maze or file", name, MAZES, f"Mazes are {', '.join(MAZES)}; a file contains a drawing.")
    try:
        return Maze(files.text(Path(name)), None, start, length, noise, Path(name).stem)
    except UserError as error:
        raise UserError(f"{name}: {error}") from None


# Learners --------------------------------------------------------------------------------------------------------


def rivals(
    length: int, discount: float, energy: str = "mrn+potential", loss: str = "symmetric"
) -> dict[str, LearnedBonus]:
    """Inverse dynamics, EC's likelihood and ETD. EC's near and far are its usual 5 and 25 for walks of 50 steps."""
    near = max(1, length // 10)
    return {
        "inverse": Inverse(),
        "ec": EC(near=near, far=max(near, length // 2)),
        "etd": temporal(discount, energy, loss),
    }


def temporal(discount: float, energy: str = "mrn+potential", loss: str = "symmetric", symmetric: bool = False) -> ETD:
    """ETD with one of the paper's energies and losses."""
    for what, name, known in (("energy", energy, ENERGIES), ("loss", loss, LOSSES)):
        if name not in known:
            raise unknown(what, name, known, f"Choose {', '.join(known)}.")
    fields: Any = {"energy": energy, "objective": loss}
    return ETD(discount=discount, symmetric=symmetric, **fields)


def grid(discount: float) -> dict[str, LearnedBonus]:
    """ETD with every energy and every loss."""
    return {f"{energy}, {loss}": temporal(discount, energy, loss) for energy in ENERGIES for loss in LOSSES}


def learn(
    maze: Maze, bonus: LearnedBonus, walks: int, steps: int, seed: int, tell: Callable[[], None] = lambda: None
) -> np.ndarray:
    """[S, S] the distance one learner finds between the maze's cells; ``tell`` is called after every CHUNK of steps."""
    key = jax.random.key(seed)
    bonus = settle(bonus)
    seen = walk(maze, walks, named(key, "walks"))
    state = _begin(bonus, maze.spec, named(key, "weights"))
    for first in range(0, steps, CHUNK):
        rates = 1 - jnp.arange(first, min(first + CHUNK, steps)) / steps
        state = _train(bonus, state, seen, rates, named(key, "train", first))
        tell()
    return np.asarray(_measure(maze, bonus, state.learner, seen, named(key, "look")))


def settle(bonus: LearnedBonus) -> LearnedBonus:
    """The bonus with the settings that all learners share."""
    if isinstance(bonus, RecurrentBonus):
        bonus = replace(bonus, cell=NoCell())
    return replace(bonus, trunk=MapTrunk(), norm="none", minibatch=MINIBATCH, learning_rate=LEARNING_RATE)


@partial(jax.jit, static_argnums=(0, 1))
def walk(maze: Maze, walks: int, key: Key) -> Walks:
    """Walks of uniformly random actions, each an episode from its own start."""

    def one(key: Key) -> tuple[Array, Array, PyTree, Array]:
        start, obs = maze.reset(named(key, "start"))
        actions = jax.random.randint(named(key, "actions"), (maze.length,), 0, maze.spec.action.n)  # type: ignore

        def advance(state: MazeState, now: tuple[Array, Key]) -> tuple[MazeState, PyTree]:
            return maze.step(state, *now)

        _, step = jax.lax.scan(advance, start, (actions, jax.random.split(named(key, "steps"), maze.length)))
        cells = jnp.concatenate([start.cell[None], step.fingerprint.astype(jnp.int32)])
        return jnp.concatenate([obs[None], step.next_obs]), actions, step, cells

    obs, action, step, cells = jax.vmap(one, out_axes=1)(jax.random.split(key, walks))
    mean, scale = obs.mean((0, 1)), jnp.maximum(obs.std((0, 1)), FAINTEST) / CONTRAST
    names = jnp.arange(obs.shape[0] * walks, dtype=jnp.uint32).reshape(-1, walks)
    nothing = jnp.zeros(names.shape)
    rollout = Rollout(names, step._replace(next_obs=names[1:]), action, nothing[1:], nothing, nothing[..., None])
    return Walks(((obs - mean) / scale).reshape(-1, *obs.shape[2:]), rollout, cells, mean, scale)


@partial(jax.jit, static_argnums=(0, 1))
def _begin(bonus: LearnedBonus, spec: EnvSpec, key: Key) -> BonusState:
    return bonus.init(key, spec, 1)


@partial(jax.jit, static_argnums=0)
def _train(bonus: LearnedBonus, state: BonusState, seen: Walks, rates: Array, key: Key) -> BonusState:
    """A minibatch of fresh examples for each of ``rates``, which scale the learning rate."""

    def update(learner: Learner, now: tuple[Array, Key]) -> tuple[Learner, None]:
        rate, key = now
        # One step from each of B random walks: making examples of all steps of all walks would cost more than training.
        size = bonus.minibatch
        walks = jax.random.randint(named(key, "walks"), (size,), 0, seen.cells.shape[1])
        some = jax.tree.map(lambda leaf: leaf[:, walks], seen.rollout)
        rows = bonus.examples(state, some, (), named(key, "examples"))
        times = jax.random.randint(named(key, "times"), (size,), 0, some.action.shape[0])
        chosen = times * size + jnp.arange(size)
        batch = jax.tree.map(lambda leaf: _look(seen, leaf[chosen]), rows)
        optimiser = adam(bonus.learning_rate * rate, bonus.max_grad_norm)  # type: ignore[arg-type]

        def loss(net: Any, batch: PyTree, key: Key) -> tuple[Array, dict[str, Array]]:
            return bonus.loss(net, state.extra, batch, key)

        return descend(learner, optimiser, loss, batch, named(key, "loss"))[0], None

    learner, _ = jax.lax.scan(update, state.learner, (rates, jax.random.split(key, len(rates))))
    return state._replace(learner=learner)


def _look(seen: Walks, leaf: Array) -> Array:
    """Replace indices of frames by the frames; only they are uint32."""
    return seen.frames[leaf] if leaf.dtype == jnp.uint32 else leaf


@partial(jax.jit, static_argnums=(0, 1))
def _measure(maze: Maze, bonus: LearnedBonus, learner: Learner, seen: Walks, key: Key) -> Array:
    """[S, S] distances between observations of all cells; with random wall colours, each cell is observed once."""
    count = len(maze.cells)
    obs = jax.vmap(maze.observe)(jnp.arange(count), jax.random.split(key, count))
    return between(bonus, learner.net(), (obs - seen.mean) / seen.scale)


def between(bonus: LearnedBonus, net: Any, obs: Array) -> Array:
    """[S, S] the model's distance between every two of S observations, larger meaning farther."""
    features = net.trunk(obs)
    if isinstance(bonus, ETD):
        embedding = net.encode(features)
        return bonus.distance(embedding, embedding)
    if isinstance(bonus, EC):
        count = len(obs)
        pairs = jnp.repeat(features, count, 0), jnp.tile(features, (count, 1))
        return -jax.nn.log_sigmoid(net.compare(*pairs)).reshape(count, count)
    return energies.euclidean(features, features)
