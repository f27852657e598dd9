"""What a trained ETD model has learned about a level: the temporal distance from the agent to every cell.

The agent is placed on every free cell of its level, with all else unchanged (its direction, what it carries, the
doors), and what it would observe there is embedded. Observations are all the model sees, so cells that look alike are
at distance zero. In a first-person maze it is placed in the centre of every room, and the whole room has its distance.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from scipy import ndimage

from etd.bonuses import ETD
from etd.bonuses.memory import Memory
from etd.core.errors import UserError
from etd.core.types import Array, PyTree
from etd.envs.base import DeviceEnv
from etd.envs.maze import Maze
from etd.envs.maze3d import Maze3D, plan
from etd.envs.maze3d.env import centre
from etd.envs.minigrid.env import MiniGrid
from etd.envs.minigrid.world import DOOR, EMPTY, FLOOR, GOAL_KIND, OPEN, WALL_KIND, kind_of, state_of
from etd.envs.noise import Noisy
from etd.nets.model import Learner
from etd.training.config import bonus_name

Places: TypeAlias = MiniGrid | Maze | Maze3D
"""Environments whose agent can be placed anywhere."""


class Inside(NamedTuple):
    """The learned distance along an episode of T steps."""

    maps: np.ndarray
    """[T+1, H, W] from the state at each step to every reachable cell; NaN elsewhere"""
    places: np.ndarray
    """[T+1, 2] the agent's row and column"""
    nearest: np.ndarray
    """[T+1] the earlier step k whose state is nearest, argmin_k d(s_k, s_t); -1 at the start"""
    wide: int = 1
    """how many cells the agent is wide"""


class Present(NamedTuple):
    """What the model makes of one level as it stands; [H, W], NaN where the agent cannot get to."""

    distance: np.ndarray
    """from the agent"""
    bonus: np.ndarray
    """what a cell would give if the agent reached it now"""
    place: tuple[int, int]
    """the agent's row and column"""
    wide: int
    """how many cells the agent is wide"""


def look(env: DeviceEnv, bonus: Any, learner: Learner, states: PyTree) -> Inside:
    """The learned distance for the states [T+1, ...] of one episode."""
    env = check(env, bonus)
    steps = len(jax.tree.leaves(states)[0])
    maps, places, own = [], [], []
    for step in range(steps):
        state = jax.tree.map(lambda leaf, step=step: leaf[step], states)
        distance, present = _map(env, bonus, learner, state)
        cells, place = _on_cells(env, state, distance)
        maps.append(cells)
        places.append(place)
        own.append(present)
    between = np.asarray(bonus.distance(jnp.stack(own), jnp.stack(own)))
    nearest = [-1] + [int(between[:t, t].argmin()) for t in range(1, steps)]
    return Inside(np.stack(maps), np.array(places), np.array(nearest), _width(env))


def present(env: DeviceEnv, bonus: Any, learner: Learner, seen: Memory, state: PyTree) -> Present:
    """The learned distance and the bonus in one environment's ``state``, whose episode has ``seen`` [L, F]."""
    env = check(env, bonus)
    distance, place = _on_cells(env, state, _map(env, bonus, learner, state)[0])
    return Present(distance, _on_cells(env, state, _bonus(env, bonus, learner, seen, state))[0], place, _width(env))


def check(env: DeviceEnv, bonus: Any) -> Places:
    """The environment without its noise; a UserError if it has no cells or the bonus no distance."""
    if not isinstance(bonus, ETD):
        name = bonus_name(bonus)
        raise UserError(f"This run's bonus is {name}, which learns no distance. Only runs with the bonus etd do.")
    env = env.env if isinstance(env, Noisy) else env
    if not isinstance(env, Places):
        raise UserError(f"{env.spec.name} has no cells to place the agent on. MiniGrid levels and mazes do.")
    return env


@partial(jax.jit, static_argnums=(0, 1))
def _map(env: Places, bonus: ETD, learner: Learner, state: PyTree) -> tuple[Array, Array]:
    """Distances [H * W] from the state to the same state with the agent in every place, and its own embedding [D]."""
    net = learner.net()
    here, there = _views(env, state)
    embedded = net.encode(net.trunk(jnp.concatenate([here[None], there])))
    return bonus.distance(embedded[:1], embedded[1:])[0], embedded[0]


@partial(jax.jit, static_argnums=(0, 1))
def _bonus(env: Places, bonus: ETD, learner: Learner, seen: Memory, state: PyTree) -> Array:
    """[H * W] the bonus of the same state with the agent in every place."""
    net = learner.net()
    here, there = _views(env, state)
    features = net.trunk(jnp.concatenate([here[None], there]))
    past = net.encode(jnp.concatenate([features[:1], seen.values]))
    # An episode that has just begun has seen nothing but the present.
    stored = jnp.concatenate([seen.filled[None] == 0, jnp.arange(len(seen.values)) < seen.filled])
    return bonus.nearest(past, net.encode(features[1:]), jnp.broadcast_to(stored[:, None], (len(past), len(there))))


def _on_cells(env: Places, state: PyTree, values: Array) -> tuple[np.ndarray, tuple[int, int]]:
    """[H, W] the values [H * W] of places, NaN where the agent cannot get to; and its row and column."""
    if isinstance(env, Maze3D):
        return plan.spread(np.asarray(values).reshape(env.size, env.size)), plan.cell(np.asarray(state.place))
    free, place = _reachable(env, state)
    return np.where(free, np.asarray(values).reshape(free.shape), np.nan), place


def _width(env: Places) -> int:
    return plan.AGENT if isinstance(env, Maze3D) else 1


def _views(env: Places, state: PyTree) -> tuple[Array, Array]:
    """The agent's observation, and what it would be on every cell or in every room, by rows: [...], [H * W, ...]."""
    if isinstance(env, Maze):
        see = partial(env.observe, key=jax.random.key(0))  # the same wall colours for every cell
        return see(state.cell), jax.vmap(see)(jnp.asarray(env.index).reshape(-1))
    if isinstance(env, Maze3D):
        rooms = jnp.eye(env.size**2, dtype=bool).reshape(-1, env.size, env.size)
        return env.observe(state), jax.vmap(lambda room: env.observe(state._replace(place=centre(room))))(rooms)
    rows, columns = (axis.reshape(-1) for axis in jnp.mgrid[: env.level.height, : env.level.width])
    return env.observe(state), jax.vmap(lambda y, x: env.observe(state._replace(x=x, y=y)))(rows, columns)


def _reachable(env: MiniGrid | Maze, state: PyTree) -> tuple[np.ndarray, tuple[int, int]]:
    """[H, W] where the agent can get to, and (row, column) where it is.

    Paths lead through doors, which can be opened, and past objects, which can be moved; closed doors and objects
    themselves do not count.
    """
    if isinstance(env, Maze):
        return env.index >= 0, env.cells[int(state.cell)]
    grid = jnp.asarray(state.grid)[: env.level.height, : env.level.width]
    kind, status = np.asarray(kind_of(grid)), np.asarray(state_of(grid))
    place = int(state.y), int(state.x)
    way = kind != WALL_KIND
    way[place] = True
    pieces, _ = ndimage.label(way)
    free = np.isin(kind, (EMPTY, FLOOR, GOAL_KIND)) | ((kind == DOOR) & (status == OPEN))
    free[place] = True
    return (pieces == pieces[place]) & free, place
