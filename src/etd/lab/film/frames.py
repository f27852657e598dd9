"""The frames of a film, with the level, the learned distance and the bonus so far; and the film's file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from etd.core.types import EnvSpec
from etd.envs import families
from etd.lab.film.distance_map import Inside
from etd.lab.report.plot import COLOURS, PALETTE
from etd.lab.runs.sinks import extra
from etd.training.backend import Episode

Picture: TypeAlias = Image.Image
Font: TypeAlias = ImageFont.FreeTypeFont

HOLD = 1.5
"""Seconds the last frame is held."""
LEVEL = 384
"""Height of the level's image, in pixels."""

_INK, _DIM, _LINE, _GROUND, _GOOD = "#f2f3f5", "#9aa0aa", "#343842", "#16181d", "#5fd38d"
_MARGIN, _HEADER, _SHARP = 20, 64, 2
_COLOURS = matplotlib.colormaps["viridis"]


@dataclass(frozen=True)
class Film:
    """An episode and what is shown around it."""

    spec: EnvSpec
    bonus_name: str
    episode: Episode
    inside: Inside | None = None
    """the learned distance at every step, if it is shown"""


def frame(film: Film, step: int) -> Picture:
    """The episode after ``step`` steps: the level on the left, the bonus so far on the right, facts above.

    Between them, if ``inside`` is given, the level coloured by the learned distance from the agent.
    """
    level = _level(film.episode.pictures[step])
    panels = [level]
    if film.inside:
        panels.append(_heat(level, film.inside, step))
    side = max(level.width, LEVEL)
    panels.append(_curve(film, step, side, level.height))
    width, height = sum(panel.width + _MARGIN for panel in panels) + _MARGIN, _HEADER + level.height + _MARGIN
    # Both even: video codecs require it.
    picture = Image.new("RGB", (width + width % 2, height + height % 2), _GROUND)
    lefts: list[int] = []
    for panel in panels:
        lefts.append(lefts[-1] + level.width + _MARGIN if lefts else _MARGIN)
        picture.paste(panel, (lefts[-1], _HEADER))
    draw = ImageDraw.Draw(picture)
    _header(draw, film, step, lefts[-1])
    if film.inside:
        _legend(draw, picture, film.inside, lefts[1], level.width)
    return picture


def _heat(level: Picture, inside: Inside, step: int) -> Picture:
    """The level with every reachable cell coloured by its distance, and a line to the nearest earlier state."""
    cells = inside.maps[step]
    height, width = cells.shape
    colours = np.asarray(_COLOURS(np.nan_to_num(cells) / _farthest(inside)))[..., :3] * 255
    picture = level.resize((level.width * _SHARP, level.height * _SHARP)).point(lambda value: value // 3)
    draw = ImageDraw.Draw(picture)
    tall, wide = picture.height / height, picture.width / width

    def middle(place: np.ndarray) -> tuple[float, float]:
        return (float(place[1]) + 0.5) * wide, (float(place[0]) + 0.5) * tall

    for row, column in np.argwhere(np.isfinite(cells)):
        corners = (column * wide + 1, row * tall + 1, (column + 1) * wide - 2, (row + 1) * tall - 2)
        draw.rectangle(corners, tuple(colours[row, column].astype(int).tolist()))
    agent = middle(inside.places[step])
    if inside.nearest[step] >= 0:
        past = middle(inside.places[inside.nearest[step]])
        draw.line([past, agent], _INK, 2 * _SHARP)
        draw.circle(past, 0.16 * tall * inside.wide, None, _INK, 2 * _SHARP)
    draw.circle(agent, 0.28 * tall * inside.wide, "#dc2828", _INK, 2 * _SHARP)
    return picture.reduce(_SHARP)


def _legend(draw: ImageDraw.ImageDraw, picture: Picture, inside: Inside, left: int, width: int) -> None:
    draw.text((left, 12), "distance from the agent", _INK, _font(14))
    bar = Image.fromarray((np.asarray(_COLOURS(np.linspace(0, 1, 120)))[None, :, :3] * 255).astype(np.uint8))
    picture.paste(bar.resize((120, 12)), (left + 22, 40))
    draw.text((left + 14, 38), "0", _DIM, _font(12), anchor="ra")
    draw.text((left + 150, 38), f"{_farthest(inside):.1f}", _DIM, _font(12))
    if width >= 330:
        draw.text((left + width, 38), "ring: nearest earlier state", _DIM, _font(12), anchor="ra")


def _farthest(inside: Inside) -> float:
    """The distance of the last colour, the same for the whole film."""
    return max(float(np.nanquantile(inside.maps, 0.98)), 1e-6)


def _level(pixels: np.ndarray) -> Picture:
    """The level at the film's height. Enlarged by a whole factor first: edges stay sharp, and files small."""
    large = Image.fromarray(pixels.repeat(4, 0).repeat(4, 1))
    return large.resize((round(large.width * LEVEL / large.height), LEVEL), Image.Resampling.BOX)


def _header(draw: ImageDraw.ImageDraw, film: Film, step: int, right: int) -> None:
    spec, episode = film.spec, film.episode
    solved = episode.success and step == len(episode)
    big, small, second = _font(17, bold=True), _font(14), right + 160
    draw.text((_MARGIN, 12), spec.name.removesuffix("-v0"), _INK, big)
    draw.text((_MARGIN, 36), f"step {step} of at most {spec.max_steps}", _DIM, small)
    draw.text((right, 12), f"return {episode.rewards[:step].sum():.2f}", _GOOD if solved else _INK, big)
    draw.text((right, 36), _action(film, step - 1) if step else "start", _DIM, small)
    if step:
        draw.text((second, 36), f"bonus {episode.bonus[step - 1]:.2f}", _colour(film), small)
    if step == len(episode) and spec.can_succeed:
        draw.text((second, 12), "solved" if solved else "not solved", _GOOD if solved else _DIM, big)


def _action(film: Film, step: int) -> str:
    action = film.episode.actions[step]
    if action.ndim:
        return " ".join(f"{value:+.1f}" for value in action[:3])
    family = families.find(film.spec.name)
    return family.actions[action] if family and family.actions else f"action {action}"


def _curve(film: Film, step: int, width: int, height: int) -> Picture:
    """The bonus of steps 1 to ``step`` on axes for the whole episode, so that the curve grows from left to right."""
    picture = Image.new("RGB", (width * _SHARP, height * _SHARP), _GROUND)
    draw, episode = ImageDraw.Draw(picture), film.episode
    left, top, right, bottom = (_SHARP * edge for edge in (46, 30, width - 8, height - 26))
    lowest, ticks, highest = _scale(episode.bonus)
    font = _font(13 * _SHARP)

    def at(time: np.ndarray | float, value: np.ndarray | float) -> tuple[Any, Any]:
        x = left + time / len(episode) * (right - left)
        return x, bottom - (value - lowest) / (highest - lowest) * (bottom - top)

    draw.text((0, 0), f"{film.bonus_name} bonus per step", _INK, _font(14 * _SHARP))
    for tick in ticks:
        draw.line([at(0, tick), at(len(episode), tick)], _LINE, _SHARP)
        draw.text((left - 8 * _SHARP, at(0, tick)[1]), f"{tick:g}", _DIM, font, anchor="rm")
    for x, text, anchor in ((left, "0", "ma"), ((left + right) / 2, "step", "ma"), (right, str(len(episode)), "ra")):
        draw.text((x, bottom + 6 * _SHARP), text, _DIM, font, anchor=anchor)
    if step:
        xs, ys = at(np.arange(1, step + 1), episode.bonus[:step])
        _trace(draw, list(zip(xs.tolist(), ys.tolist(), strict=True)), at(0, 0.0)[1], _colour(film))
    return picture.reduce(_SHARP)


def _scale(values: np.ndarray) -> tuple[float, list[float], float]:
    """(lowest, ticks at round numbers, highest) of an axis that includes the values and zero."""
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


def _colour(film: Film) -> str:
    return COLOURS.get(film.bonus_name, PALETTE[3])


def _mix(colour: str, ground: str, share: float) -> tuple[int, ...]:
    """``share`` of one colour over another."""
    pairs = [(int(colour[i : i + 2], 16), int(ground[i : i + 2], 16)) for i in (1, 3, 5)]
    return tuple(round(share * a + (1 - share) * b) for a, b in pairs)


@lru_cache(maxsize=8)
def _font(size: int, bold: bool = False) -> Font:
    """The font shipped with matplotlib, so that films look the same everywhere."""
    file = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"DejaVuSans{'-Bold' * bold}.ttf"
    return ImageFont.truetype(str(file), size)


# Files -----------------------------------------------------------------------------------------------------------


def write_gif(frames: list[Picture], out: Path, seconds: float) -> None:
    """Write a GIF. One palette, taken from a few frames, serves all: the colours stay the same and the file small."""
    few = [frames[0], frames[len(frames) // 2], frames[-1]]
    sample = Image.new("RGB", (few[0].width, few[0].height * len(few)))
    for row, picture in enumerate(few):
        sample.paste(picture, (0, row * picture.height))
    palette = sample.quantize(128, Image.Quantize.MEDIANCUT)
    first, *rest = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in frames]
    pause = round(seconds * 100) * 10  # GIF durations are in hundredths of a second
    durations = [pause] * len(rest) + [round(HOLD * 1000)]
    first.save(out, save_all=True, append_images=rest, duration=durations, loop=0, optimize=True)


def write_mp4(frames: list[Picture], out: Path, seconds: float) -> None:
    held = frames + [frames[-1]] * round(HOLD / seconds)
    with extra("imageio", "video").get_writer(out, fps=1 / seconds, macro_block_size=2) as writer:
        for picture in held:
            writer.append_data(np.asarray(picture))
