"""What a trained policy does: a film of one episode with its bonus beside it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import jax
import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from etd.core.errors import UserError
from etd.core.keys import named
from etd.core.types import PyTree
from etd.envs.base import DeviceEnv
from etd.envs.host.env import HostEnv
from etd.lab import rerun, session
from etd.lab.fields import bonus_name
from etd.lab.plot import COLOURS, PALETTE, by_seed
from etd.lab.sinks import extra
from etd.lab.store import Run
from etd.train import trainer
from etd.train.evaluate import replay
from etd.train.learn import TrainState

Picture: TypeAlias = Image.Image
Font: TypeAlias = ImageFont.FreeTypeFont

FRAMES = 120
"""At most; a longer episode skips some, never its last."""
HOLD = 1.5
"""Seconds the last frame stays."""
LEVEL = 384
"""Height of the level's picture, in pixels."""
MINIGRID = ("turn left", "turn right", "forward", "pick up", "drop", "toggle", "done")
"""Action names of MiniGrid."""

_replay = jax.jit(replay, static_argnums=0)
_INK, _DIM, _LINE, _GROUND, _GOOD = "#f2f3f5", "#9aa0aa", "#343842", "#16181d", "#5fd38d"
_MARGIN, _HEADER, _SHARP = 20, 64, 2


@dataclass(frozen=True)
class Episode:
    """One episode on the host."""

    env: DeviceEnv | HostEnv
    bonus_name: str
    states: PyTree
    """[T+1, ...]; of a host's environment, its pictures by step"""
    actions: np.ndarray
    """[T] or [T, size]"""
    rewards: np.ndarray
    """[T]"""
    bonus: np.ndarray
    """[T] raw, of the state each step led to"""
    success: bool

    def __len__(self) -> int:
        return len(self.rewards)

    def picture(self, step: int) -> np.ndarray:
        """[height, width, 3] uint8 after ``step`` steps"""
        if isinstance(self.env, HostEnv):
            return self.states[step]
        return self.env.render(jax.tree.map(lambda leaf: leaf[step], self.states))


def film(path: Path, out: Path, seed: int | None = None, episodes: int = 3, greedy: bool = False) -> Path:
    """Play fresh levels and write the first success, or else the episode of the highest return, as .gif or .mp4.

    ``seed`` names one of the run's agents; without it, the one that did best at the end of training plays.
    """
    if out.suffix not in (".gif", ".mp4"):
        raise UserError(f"A film cannot end in {out.suffix!r}. Choose .gif or .mp4.")
    if episodes < 1:
        raise UserError(f"{episodes} episodes cannot be played. Ask for at least 1.")
    if out.suffix == ".mp4":
        extra("imageio_ffmpeg", "video")  # before the work, not after it
    run, state = session.load(path)
    episode = record(run, state, choose(run, seed), episodes, greedy)
    frames = [frame(episode, time) for time in shown_steps(len(episode))]
    out.parent.mkdir(parents=True, exist_ok=True)
    # A short film is slow enough to follow, a long one does not bore.
    seconds = float(np.clip(10 / len(frames), 0.06, 0.25))
    (_write_gif if out.suffix == ".gif" else _write_mp4)(frames, out, seconds)
    return out


def shown_steps(length: int) -> list[int]:
    """After which steps of an episode a frame is drawn."""
    return np.unique(np.linspace(0, length, min(FRAMES, length + 1)).round().astype(int)).tolist()


def record(run: Run, state: TrainState, index: int, episodes: int, greedy: bool) -> Episode:
    """The episode worth showing among ``episodes`` played by the agent at ``index``."""
    experiment, on_host = run.experiment, run.experiment.env.host()
    if on_host is not None:
        found = rerun.best(experiment, on_host, state, index, episodes, greedy, shown_steps)
        played = found.played
        name = bonus_name(experiment.bonus)
        return Episode(on_host, name, found.pictures, played.actions, played.rewards, found.bonus, played.success)
    key = named(state.key[index], "film")
    shown = trainer.player(experiment, episodes, greedy)(state, index, key)
    success = np.asarray(shown.success)
    best = int(success.argmax()) if success.any() else int(np.asarray(shown.total).argmax())
    length = int(shown.length[best])
    env = experiment.env.make()
    actions = shown.rollout.action[:length, best]
    start = jax.tree.map(lambda leaf: leaf[best], shown.start)
    return Episode(
        env,
        bonus_name(experiment.bonus),
        jax.device_get(_replay(env, start, actions, key)),
        np.asarray(actions),
        np.asarray(shown.rollout.step.reward[:length, best]),
        np.asarray(shown.bonus[:length, best]),
        bool(success[best]),
    )


def choose(run: Run, seed: int | None) -> int:
    """The index of the agent that plays: that of ``seed``, else the one with the highest final return."""
    first, count = run.experiment.seed, run.experiment.seeds
    if seed is None:
        final = by_seed(run, "return").values[:, -1:]
        return int(np.nan_to_num(final, nan=-np.inf).sum(1).argmax())
    if not first <= seed < first + count:
        known = f"seed {first}" if count == 1 else f"seeds {first} to {first + count - 1}"
        raise UserError(f"{run.path} has no seed {seed}; it has {known}.")
    return seed - first


# One frame -------------------------------------------------------------------------------------------------------


def frame(episode: Episode, step: int) -> Picture:
    """The episode after ``step`` steps: the level at the left, the bonus so far at the right, facts above."""
    level = _level(episode.picture(step))
    side = max(level.width, LEVEL)
    width, height = level.width + side + 3 * _MARGIN, _HEADER + level.height + _MARGIN
    # Both even: video codecs ask for it.
    picture = Image.new("RGB", (width + width % 2, height + height % 2), _GROUND)
    picture.paste(level, (_MARGIN, _HEADER))
    picture.paste(_curve(episode, step, side, level.height), (level.width + 2 * _MARGIN, _HEADER))
    _header(ImageDraw.Draw(picture), episode, step, level.width + 2 * _MARGIN)
    return picture


def _level(pixels: np.ndarray) -> Picture:
    """At the film's height. Enlarged in whole steps first: edges stay sharp, and sharp edges make small files."""
    large = Image.fromarray(pixels.repeat(4, 0).repeat(4, 1))
    return large.resize((round(large.width * LEVEL / large.height), LEVEL), Image.Resampling.BOX)


def _header(draw: ImageDraw.ImageDraw, episode: Episode, step: int, right: int) -> None:
    spec, solved = episode.env.spec, episode.success and step == len(episode)
    big, small, second = _font(17, bold=True), _font(14), right + 160
    draw.text((_MARGIN, 12), spec.name.removesuffix("-v0"), _INK, big)
    draw.text((_MARGIN, 36), f"step {step} of at most {spec.max_steps}", _DIM, small)
    draw.text((right, 12), f"return {episode.rewards[:step].sum():.2f}", _GOOD if solved else _INK, big)
    draw.text((right, 36), _action(episode, step - 1) if step else "start", _DIM, small)
    if step:
        draw.text((second, 36), f"bonus {episode.bonus[step - 1]:.2f}", _colour(episode), small)
    if step == len(episode):
        draw.text((second, 12), "solved" if solved else "not solved", _GOOD if solved else _DIM, big)


def _action(episode: Episode, step: int) -> str:
    action = episode.actions[step]
    if action.ndim:
        return " ".join(f"{value:+.1f}" for value in action[:3])
    return MINIGRID[action] if episode.env.spec.name.startswith("MiniGrid") else f"action {action}"


def _curve(episode: Episode, step: int, width: int, height: int) -> Picture:
    """The bonus of steps 1 to ``step`` in a frame scaled for the whole episode, so that it grows from left to right."""
    picture = Image.new("RGB", (width * _SHARP, height * _SHARP), _GROUND)
    draw = ImageDraw.Draw(picture)
    left, top, right, bottom = (_SHARP * edge for edge in (46, 30, width - 8, height - 26))
    lowest, ticks, highest = _scale(episode.bonus)
    font = _font(13 * _SHARP)

    def at(time: np.ndarray | float, value: np.ndarray | float) -> tuple[Any, Any]:
        x = left + time / len(episode) * (right - left)
        return x, bottom - (value - lowest) / (highest - lowest) * (bottom - top)

    draw.text((0, 0), f"{episode.bonus_name} bonus of each step", _INK, _font(14 * _SHARP))
    for tick in ticks:
        draw.line([at(0, tick), at(len(episode), tick)], _LINE, _SHARP)
        draw.text((left - 8 * _SHARP, at(0, tick)[1]), f"{tick:g}", _DIM, font, anchor="rm")
    for x, text, anchor in ((left, "0", "ma"), ((left + right) / 2, "step", "ma"), (right, str(len(episode)), "ra")):
        draw.text((x, bottom + 6 * _SHARP), text, _DIM, font, anchor=anchor)
    if step:
        xs, ys = at(np.arange(1, step + 1), episode.bonus[:step])
        _trace(draw, list(zip(xs.tolist(), ys.tolist(), strict=True)), at(0, 0.0)[1], _colour(episode))
    return picture.reduce(_SHARP)


def _scale(values: np.ndarray) -> tuple[float, list[float], float]:
    """(lowest, round numbers between, highest) of an axis that holds the values and zero."""
    lowest, highest = min(0.0, float(values.min())), max(0.0, float(values.max()))
    highest = highest + 0.05 * (highest - lowest) or 1.0
    size = 10.0 ** np.floor(np.log10(highest - lowest))
    unit = next(size * factor for factor in (0.2, 0.5, 1, 2, 5) if (highest - lowest) / (size * factor) < 5)
    return lowest, [float(unit * n) for n in range(int(lowest / unit), int(highest / unit) + 1)], highest


def _trace(draw: ImageDraw.ImageDraw, points: list[tuple[float, float]], zero: float, colour: str) -> None:
    """A filled line with a marker at its end."""
    ground = [(points[0][0], zero), *points, (points[-1][0], zero)]
    draw.polygon(ground, _mix(colour, _GROUND, 0.25))
    draw.line(points, colour, 2 * _SHARP, joint="curve")
    x, y = points[-1]
    draw.line([(x, y), (x, zero)], colour, _SHARP)
    draw.circle((x, y), 5 * _SHARP, _INK, colour, 2 * _SHARP)


def _colour(episode: Episode) -> str:
    return COLOURS.get(episode.bonus_name, PALETTE[3])


def _mix(colour: str, ground: str, share: float) -> tuple[int, ...]:
    """``share`` of one colour over another."""
    pairs = [(int(colour[i : i + 2], 16), int(ground[i : i + 2], 16)) for i in (1, 3, 5)]
    return tuple(round(share * a + (1 - share) * b) for a, b in pairs)


@lru_cache(maxsize=8)
def _font(size: int, bold: bool = False) -> Font:
    """The font that comes with matplotlib, so that films look the same everywhere."""
    file = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"DejaVuSans{'-Bold' * bold}.ttf"
    return ImageFont.truetype(str(file), size)


# Files -----------------------------------------------------------------------------------------------------------


def _write_gif(frames: list[Picture], out: Path, seconds: float) -> None:
    """One palette for all frames, taken from a few of them: the same colours throughout, and a smaller file."""
    few = [frames[0], frames[len(frames) // 2], frames[-1]]
    sample = Image.new("RGB", (few[0].width, few[0].height * len(few)))
    for row, picture in enumerate(few):
        sample.paste(picture, (0, row * picture.height))
    palette = sample.quantize(128, Image.Quantize.MEDIANCUT)
    first, *rest = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in frames]
    pause = round(seconds * 100) * 10  # GIF counts hundredths of a second
    durations = [pause] * len(rest) + [round(HOLD * 1000)]
    first.save(out, save_all=True, append_images=rest, duration=durations, loop=0, optimize=True)


def _write_mp4(frames: list[Picture], out: Path, seconds: float) -> None:
    held = frames + [frames[-1]] * round(HOLD / seconds)
    with extra("imageio", "video").get_writer(out, fps=1 / seconds, macro_block_size=2) as writer:
        for picture in held:
            writer.append_data(np.asarray(picture))
