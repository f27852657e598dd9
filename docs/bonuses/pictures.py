"""Draw where each bonus pays on a level: python docs/bonuses/pictures.py [NAME ...]

No policy learns here. A scripted walk is recorded, first through levels that are new in every episode, on which each
bonus trains its model as it would in training, then again and again through one level, on which the trained model is
only scored. All bonuses see the same steps, so their pictures differ by the bonus alone.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from etd.bonuses import BONUSES, Bonus, BonusState, Mixture, visits
from etd.core.keys import named
from etd.core.types import Array, Key, Rollout, Transition
from etd.envs import autoreset
from etd.envs.base import DeviceEnv
from etd.envs.minigrid import make
from etd.envs.minigrid.actions import ACTIONS, FORWARD, LEFT, PICKUP, RIGHT, TOGGLE
from etd.envs.minigrid.env import MiniGrid
from etd.envs.minigrid.world import (
    DOOR,
    EMPTY,
    GOAL_KIND,
    KEY,
    OPEN,
    WALL_KIND,
    World,
    ahead,
    at,
    kind_of,
    read,
    state_of,
)
from etd.lab.report.plot import COLOURS
from etd.training import presets

HERE = Path(__file__).parent
LEVEL = "MiniGrid-DoorKey-8x8-v0"
DRAWN = 6
"""Which of the level's seeds is drawn."""
ENVS, STEPS, ROLLOUTS = 16, 256, 8
"""The recorded walk on which the models train: 32,768 steps."""
SCORED = 1280
"""Steps of every environment in the level that is drawn."""
MIXTURE = "count*rnd"
"""The example of a mixture."""
OF_PRESENT = ("rnd", "e3b")
"""Bonuses of the state that a step starts from; the others are of the one it leads to."""
TOP = 3.0
"""Where the colours end, in multiples of the mean."""
FEWEST = 10
"""States that a cell needs to have a colour."""
MAP = LinearSegmentedColormap.from_list("bonus", ["#ffffff", "#fdd49e", "#fc8d59", "#d7301f", "#67000d"])
WALL, UNKNOWN = "#8a8a8a", "#dcdcdc"


# The walk --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OneLevel:
    """A level in which every episode begins alike."""

    env: MiniGrid
    seed: int

    @property
    def spec(self) -> Any:
        return self.env.spec

    def reset(self, key: Key) -> tuple[World, Array]:
        return self.env.reset(jax.random.key(self.seed))

    def step(self, state: World, action: Array, key: Key) -> tuple[World, Transition]:
        return self.env.step(state, action, key)


class Walk(NamedTuple):
    """Steps of the scripted walk, [T, N, ...]."""

    rollout: Rollout
    before: Array
    """[T, N, 2] the agent's row and column"""
    after: Array
    """[T, N, 2] where the step led it"""
    carries: Array
    """[T, N] bool: it holds the key, after the step"""
    opened: Array
    """[T, N] bool: the door is open, after the step"""


def chances(world: World) -> Array:
    """[A] the walk's probability of every action: mostly straight on, and the useful thing in front of key and door."""
    dx, dy = ahead(world.direction)
    front = read(world.grid, at(world.grid.shape[0], world.x + dx, world.y + dy))
    kind, shut = kind_of(front), state_of(front) != OPEN
    carries = world.carried != EMPTY

    def often(shares: dict[int, float]) -> Array:
        return sum(share * jax.nn.one_hot(action, ACTIONS) for action, share in shares.items())

    turn, on = often({LEFT: 0.5, RIGHT: 0.5}), often({FORWARD: 0.7, LEFT: 0.15, RIGHT: 0.15})
    wall = (kind == WALL_KIND) | ((kind == DOOR) & shut) | ((kind == KEY) & carries)
    usual = jnp.where(wall, turn, on)
    usual = jnp.where((kind == KEY) & ~carries, often({PICKUP: 1.0}), usual)
    usual = jnp.where((kind == DOOR) & shut & carries, often({TOGGLE: 1.0}), usual)
    return 0.95 * usual + 0.05 / ACTIONS


@partial(jax.jit, static_argnums=(0, 3))
def walk(env: DeviceEnv, envs: autoreset.Envs, key: Key, steps: int) -> tuple[autoreset.Envs, Walk]:
    """``steps`` steps of every environment."""
    pool = autoreset.generate(env, named(key, "levels"), envs, autoreset.pool_size(env.spec, steps))

    def advance(envs: autoreset.Envs, key: Key) -> tuple[autoreset.Envs, Any]:
        world, obs = envs.now
        logits = jnp.log(jax.vmap(chances)(world))
        action = jax.random.categorical(named(key, "action"), logits)
        reached, _ = jax.vmap(env.step)(world, action, jax.random.split(key, len(action)))
        doors = kind_of(reached.grid) == DOOR
        opened = (doors & (state_of(reached.grid) == OPEN)).any((1, 2))
        envs, step = autoreset.step(env, pool, envs, action, named(key, "env"))
        places = jnp.stack([world.y, world.x], -1), jnp.stack([reached.y, reached.x], -1)
        return envs, (obs, action, step, logits, *places, reached.carried != EMPTY, opened)

    envs, (obs, action, step, logits, *rest) = jax.lax.scan(advance, envs, jax.random.split(named(key, "steps"), steps))
    rollout = Rollout.of(obs, action, step.next_obs, step.reward, step.terminated, step.truncated)
    return envs, Walk(rollout._replace(logits=logits), *rest)


def record() -> tuple[list[Walk], Walk]:
    """The walks that the models train on, and the one that is scored."""
    env, key = make(LEVEL), jax.random.key(0)
    envs, lessons = autoreset.begin(env, named(key, "begin"), ENVS), []
    for k in range(ROLLOUTS):
        envs, one = walk(env, envs, named(key, "lesson", k), STEPS)
        lessons.append(one)
    same = OneLevel(env, DRAWN)
    return lessons, walk(same, autoreset.begin(same, key, ENVS), named(key, "scored"), SCORED)[1]


# The bonus -------------------------------------------------------------------------------------------------------


def bonus_of(name: str) -> Bonus:
    """With the settings of its preset, and networks of its own: there is no policy whose embedding it could read."""
    return own(presets.choose(LEVEL, MIXTURE if name == "mixture" else name).bonus)


def own(bonus: Bonus) -> Bonus:
    if isinstance(bonus, Mixture):
        return replace(bonus, terms=tuple(replace(t, factors=tuple(map(own, t.factors))) for t in bonus.terms))
    return replace(bonus, source="own") if hasattr(bonus, "source") else bonus  # type: ignore[call-arg]


def scores(name: str, lessons: list[Walk], scored: Walk) -> np.ndarray:
    """[T, N] the bonus of the scored walk, by the model that has learned from the lessons."""
    bonus, spec, key = bonus_of(name), make(LEVEL).spec, jax.random.key(0)

    @jax.jit
    def learn(state: BonusState, rollout: Rollout, key: Key) -> BonusState:
        state, found = bonus.score(state, rollout, named(key, "score"))
        return bonus.improve(state, rollout, found.trace, named(key, "model"))[0]

    fresh = state = bonus.init(named(key, "bonus"), spec, ENVS)
    for k, lesson in enumerate(lessons):
        state = learn(state, lesson.rollout, named(key, "iteration", k))
    state = state._replace(memory=fresh.memory)
    return np.asarray(jax.jit(bonus.score)(state, scored.rollout, named(key, "last"))[1].bonus)


# The picture -----------------------------------------------------------------------------------------------------


def first_seen(scored: Walk, present: bool) -> np.ndarray:
    """[T, N] whether the step's observation, the present or the next one, is new in its episode."""
    rollout = scored.rollout
    count = np.asarray(visits.count(visits.empty(ENVS, make(LEVEL).spec.max_steps), rollout)[1])
    if not present:
        return count == 1
    starts = np.concatenate([np.ones((1, ENVS), bool), np.asarray(rollout.done)[:-1]])
    return starts | np.concatenate([np.zeros((1, ENVS), bool), count[:-1] == 1])


def per_cell(values: np.ndarray, places: np.ndarray, counted: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """[H, W] the mean of the ``values`` [T, N] that are ``counted`` in each cell, relative to the mean of all of them;
    NaN where there are too few."""
    cell = (places[..., 0] * shape[1] + places[..., 1])[counted]
    count = np.bincount(cell, minlength=shape[0] * shape[1])
    total = np.bincount(cell, values[counted], minlength=shape[0] * shape[1])
    mean = total / np.maximum(count, 1) / values[counted].mean()
    return np.where(count >= FEWEST, mean, np.nan).reshape(shape)


def visits_per_cell(places: np.ndarray, counted: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """[H, W] how many of the ``counted`` steps each cell has, relative to the mean over cells that have some."""
    cell = (places[..., 0] * shape[1] + places[..., 1])[counted]
    count = np.bincount(cell, minlength=shape[0] * shape[1])
    return np.where(count >= FEWEST, count / count[count > 0].mean(), np.nan).reshape(shape)


def episode(scored: Walk) -> tuple[slice, int]:
    """An episode that solves the level, at the lower quartile of their lengths: its steps and its environment."""
    solved, done = np.asarray(scored.rollout.step.terminated), np.asarray(scored.rollout.done)
    found = []
    for n in range(done.shape[1]):
        ends = np.flatnonzero(done[:, n])
        for begin, end in zip([0, *(ends[:-1] + 1)], ends, strict=True):
            if solved[end, n]:
                found.append((end + 1 - begin, begin, end, n))
    _, begin, end, n = sorted(found)[len(found) // 4]
    return slice(int(begin), int(end) + 1), int(n)


def draw(name: str, values: np.ndarray, scored: Walk) -> None:
    """Write NAME.png: the level, the bonus by cell and along one episode; and NAME-map.png, the cells alone."""
    env = make(LEVEL)
    world, _ = env.reset(jax.random.key(DRAWN))
    places = np.asarray(scored.before if name in OF_PRESENT else scored.after)
    new = first_seen(scored, name in OF_PRESENT)
    shape = env.level.height, env.level.width
    average = visits_per_cell if name == "none" else partial(per_cell, values)
    every, fresh = average(places, np.ones_like(new), shape), average(places, new, shape)

    figure = Figure(figsize=(9, 2.3), dpi=100)
    FigureCanvasAgg(figure)
    level, all_steps, new_only = (figure.add_axes((left, 0.03, 0.19, 0.84)) for left in (0.005, 0.205, 0.405))
    bar, series = figure.add_axes((0.603, 0.09, 0.01, 0.72)), figure.add_axes((0.685, 0.2, 0.305, 0.58))
    level.imshow(env.render(world))
    level.set_axis_off()
    image = _cells(all_steps, every, world)
    _cells(new_only, fresh, world)
    for ax, title in ((level, "the level"), (all_steps, "all steps"), (new_only, "new observations")):
        ax.set_title(title, fontsize=9)
    colours = figure.colorbar(image, bar, ticks=[0, 1, 2, TOP])
    colours.ax.set_yticklabels(["0", "mean", "2 x", f"{TOP:g} x +"], fontsize=8)
    colours.outline.set_visible(False)
    if name == "none":
        series.remove()
    else:
        _series(series, name, values / values.mean(), scored)
    _write(figure, HERE / f"{name}.png")

    small = Figure(figsize=(2.2, 2.2), dpi=100)
    FigureCanvasAgg(small)
    _cells(small.add_axes((0, 0, 1, 1)), every, world)
    _write(small, HERE / f"{name}-map.png")


def _cells(ax: Axes, cells: np.ndarray, world: World) -> Any:
    grid = jnp.asarray(world.grid)[: cells.shape[0], : cells.shape[1]]
    kind = np.asarray(kind_of(grid))
    ax.imshow(kind == WALL_KIND, cmap=ListedColormap([UNKNOWN, WALL]), vmin=0, vmax=1)
    image = ax.imshow(cells, cmap=MAP, vmin=0, vmax=TOP)
    marks = {KEY: "key", DOOR: "door", GOAL_KIND: "goal"}
    words = [(y, x, marks[kind[y, x]]) for y, x in np.argwhere(np.isin(kind, list(marks)))]
    for y, x, word in [*words, (int(world.y), int(world.x), "start")]:
        dark = np.nan_to_num(cells[y, x]) > 0.55 * TOP
        ax.text(x, y, word, ha="center", va="center", fontsize=6, color="white" if dark else "black")
    ax.set_axis_off()
    return image


def _series(ax: Axes, name: str, relative: np.ndarray, scored: Walk) -> None:
    steps, n = episode(scored)
    values = relative[steps, n]
    time = np.arange(1, len(values) + 1)
    ax.bar(time, values, width=1.0, color=COLOURS.get(name, "#0072b2"))
    top = max(1.05 * values.max(initial=0), 1.0)
    events = {"key": np.asarray(scored.carries)[steps, n], "door": np.asarray(scored.opened)[steps, n]}
    for word, reached in events.items():
        at = time[reached.argmax()]
        ax.axvline(at, color="#777777", linewidth=0.8, linestyle=(0, (3, 2)), zorder=3)
        ax.text(at, top, word, fontsize=7, ha="center", va="bottom", color="#444444")
    ax.text(time[-1], top, "goal", fontsize=7, ha="center", va="bottom", color="#444444")
    ax.set(xlim=(0, time[-1] + 1), ylim=(0, top))
    ax.set_title("along one episode (mean = 1)", fontsize=9, pad=12)
    ax.set_xlabel("step", fontsize=8)
    ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    ax.tick_params(labelsize=8, length=2)
    ax.spines[["top", "right"]].set_visible(False)


def _write(figure: Figure, path: Path) -> None:
    """As a picture of few colours, which is a third of the size."""
    figure.savefig(path)
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)


def main(names: list[str]) -> None:
    lessons, scored = record()
    ends, solved = int(np.sum(scored.rollout.done)), int(np.sum(scored.rollout.step.terminated))
    steps, n = episode(scored)
    print(f"{scored.rollout.done.size:,} scored steps, {ends} episodes, {solved} solved; env {n}, steps {steps}")
    for name in names or list(BONUSES):
        began = time.monotonic()
        values = scores(name, lessons, scored)
        draw(name, values, scored)
        size = (HERE / f"{name}.png").stat().st_size / 1e3
        print(f"{name}: mean {values.mean():.4g}, {size:.0f} kB, {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
