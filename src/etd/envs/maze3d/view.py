"""What the agent sees, by casting one ray per column of pixels.

The camera is MiniWorld's: 1.5 m above the ground, level, 60 degrees high and wide. Walls are upright and the camera is
level, so one ray finds everything a column shows: the wall from its foot to its top, the ceiling above it, the floor
below it, and the box, its front and behind that its top, in front of it. Where two of them meet inside a pixel they are
mixed by their shares of it. The light is MiniWorld's as well: one far lamp and a base level.

Bricks, tiles and slabs are formulas with the sizes and mean colours of MiniWorld's textures, and blurred as its
textures are, by how much of the surface one pixel covers.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from etd.core.types import Array
from etd.envs.maze3d.layout import Layout

ROOM, PITCH, HEIGHT = 3.0, 3.25, 2.74
EYE = 1.5
SLOPE = math.tan(math.radians(30))
"""How far up and to the sides the view reaches, one metre ahead."""
BOX = 0.8

SHADE, LAMP = 0.65, 0.7
SIDEWAYS = 1 / math.hypot(1, 3.5, 1)
"""The direction to the lamp is (1, 3.5, 1): this much along x and z. What faces up is fully lit, what faces down not at
all."""

FLOOR, FLOOR_CONTRAST = (134.0, 132.5, 128.7), (84.7, 83.8, 82.0)
"""The mean of white and black tiles, and how far both are from it."""
CEILING = 160.7
BRICK, BRICK_CONTRAST = (121.1, 87.7, 74.2), (17.2, 10.6, 7.7)
"""The mean brick, and how far the reddest is from it."""
STAIN = (5.3, 4.3, 3.8)
MORTAR = (148.0, 142.0, 132.0)
TILE, SLAB, COURSE, BRICK_LENGTH = 0.25, 0.5, 1 / 12, 0.25
BED, BUTT = 0.14, 0.05
"""How much of a course and of a brick's length is mortar."""


class Wall(NamedTuple):
    """The wall in each column, each [side]."""

    depth: Array
    """metres ahead"""
    along: Array
    """metres from the wall's corner"""
    light: Array
    covered: Array
    """metres of wall that a pixel covers"""


class Joint(NamedTuple):
    """How much of a pixel is mortar, by its distance from the middle of a brick; each [side]."""

    middle: Array
    rise: Array
    most: Array


class Columns(NamedTuple):
    """What a column of pixels needs to know about its wall and the box, each [side]; rows are counted in pixels."""

    top: Array
    foot: Array
    """the rows between which the wall is seen"""
    light: Array
    courses: Array
    """courses per unit of slope"""
    bricks: Array
    """bricks from the wall's corner"""
    bed: Joint
    butt: Joint
    contrast: Array
    """between single bricks"""
    box_top: Array
    box_edge: Array
    box_foot: Array
    """the rows where the box's top begins, its front begins and its front ends; below the picture if it is not seen"""
    box_light: Array


def draw(layout: Layout, eye: Array, forward: Array, box: Array, angle: Array, side: int) -> Array:
    """[side, side, 3] uint8: the view from ``eye`` [2] along ``forward`` [2], a unit vector along an axis. ``box`` [2]
    is the centre of the box and ``angle`` how far it is turned. ``side`` is even, so that no ray is along an axis."""
    pixel = 2 * SLOPE / side
    slope = ((np.arange(side) + 0.5) * pixel - SLOPE).astype(np.float32)  # of columns to the right, and of rows down
    right = jnp.stack([-forward[1], forward[0]])
    ray = forward[:, None] + slope * right[:, None]
    columns = _columns(_walls(layout, eye, ray, pixel), box - eye, angle, ray, side)
    ahead, across = (eye * forward).sum(), (eye * right).sum()
    # Tiles are counted along x and z: where the view is against one of them, black and white change places.
    turned = forward.sum() * right.sum()
    up, down = slope[: side // 2, None], slope[side // 2 :, None]
    tiles = turned * _alternate(ahead + EYE / down, down, pixel)
    slabs = _joint(ahead + (EYE - HEIGHT) / up, up, pixel)
    ceiling = SHADE * CEILING - slabs - _joint(across + (EYE - HEIGHT) / up * slope, up, pixel)
    floor = tiles * _alternate(across + EYE / down * slope, down, pixel)
    upper = _with_walls([ceiling] * 3, columns, up, 0)
    lower = _with_walls([m + c * floor for m, c in zip(FLOOR, FLOOR_CONTRAST, strict=True)], columns, down, side // 2)
    return jnp.concatenate([_bytes(upper), _bytes(_with_box(lower, columns, side // 2))])


def _bytes(colours: list[Array]) -> Array:
    """[rows, side, 3] uint8. Packed into a word, all three colours of a pixel are computed together.

    On a CPU XLA would compute the whole view once for each byte that reads a word, unless it takes the word for
    expensive, as it does the remainder of a division. This one changes nothing: words have 24 bits.
    """
    red, green, blue = ((colour + 0.5).astype(jnp.uint32) for colour in colours)
    word = jax.lax.rem(red | (green << 8) | (blue << 16), jnp.uint32((1 << 24) + 43))
    return ((word[..., None] >> jnp.arange(0, 24, 8, jnp.uint32)) & 255).astype(jnp.uint8)


def _share(first: Array, last: Array, row: np.ndarray) -> Array:
    """How much of the pixel that begins at ``row`` lies between two rows."""
    return jnp.clip(jnp.minimum(row + 1, last) - jnp.maximum(row, first), 0, 1)


def _rows(rows: int, first: int) -> np.ndarray:
    return np.arange(first, first + rows, dtype=np.float32)[:, None]


def _with_walls(ground: list[Array], columns: Columns, slope: np.ndarray, first: int) -> list[Array]:
    """[3] of [rows, side]: the walls in front of ``ground``, for rows from ``first`` with ``slope`` [rows, 1]."""
    share = _share(columns.top, columns.foot, _rows(len(slope), first))
    bricks = _bricks(columns, slope)
    return [colour + share * (brick - colour) for colour, brick in zip(ground, bricks, strict=True)]


def _with_box(colours: list[Array], columns: Columns, first: int) -> list[Array]:
    """The same with the box in front of it."""
    row = _rows(len(colours[0]), first)
    top, front = _share(columns.box_top, columns.box_edge, row), _share(columns.box_edge, columns.box_foot, row)
    red, *others = (colour * (1 - top - front) for colour in colours)
    return [red + 255 * (top + columns.box_light * front), *others]


# What a ray meets ------------------------------------------------------------------------------------------------


def _walls(layout: Layout, eye: Array, ray: Array, pixel: float) -> Wall:
    """The first wall on each ray [2, side]; a ray's length is measured along the direction of view."""
    east = _meet(layout.east.T, eye[0], ray[0], eye[1], ray[1])
    south = _meet(layout.south, eye[1], ray[1], eye[0], ray[0])
    on_x = east < south
    depth = jnp.minimum(east, south)
    through = jnp.where(on_x, ray[0], ray[1])
    along = jnp.where(on_x, eye[1] + depth * ray[1], eye[0] + depth * ray[0])
    along = along - PITCH * jnp.floor(along / PITCH)
    return Wall(
        depth=depth,
        along=jnp.where(on_x == (through > 0), ROOM - along, along),
        light=SHADE + jnp.where(through < 0, LAMP * SIDEWAYS, 0.0),
        covered=depth * pixel / jnp.abs(through),
    )


def _meet(opened: Array, start: Array, ray: Array, other: Array, other_ray: Array) -> Array:
    """[side] how far the first wall is among those at right angles to an axis.

    ``opened`` [n, n] says whether room i along the axis, j across it, is joined to room i + 1. Such a wall lies at the
    far side of every room i in the direction of the ray. Where it is met between rooms there is a pillar, or nothing
    that an earlier wall would not hide.
    """
    size = opened.shape[0]
    index = jnp.arange(size)
    passages = (opened.astype(jnp.int32) << index).sum(1)  # the bits of a word, since a read by index would be slow
    behind = jnp.concatenate([jnp.zeros(1, jnp.int32), passages[:-1]])
    onward = ray > 0
    depth = (PITCH * index[:, None] + jnp.where(onward, ROOM, 0.0) - start) / ray
    place = other + depth * other_ray
    room = jnp.floor(place / PITCH)
    word = jnp.where(onward, passages[:, None], behind[:, None])
    joined = (word >> jnp.clip(room, 0, size).astype(jnp.int32)) & 1
    passes = (joined > 0) & (place - PITCH * room <= ROOM)
    return jnp.where((depth > 0) & ~passes, depth, jnp.inf).min(0)


def _columns(wall: Wall, offset: Array, angle: Array, ray: Array, side: int) -> Columns:
    """The box is at ``offset`` [2] from the eye."""
    sine, cosine = jnp.sin(angle), jnp.cos(angle)
    axes = jnp.array([[cosine, -sine], [sine, cosine]])  # the box's own x and z axis
    centre, own = (axes * offset).sum(1), axes[:, :1] * ray[0] + axes[:, 1:] * ray[1]
    own = jnp.where(jnp.abs(own) < 1e-6, 1e-6, own)
    enter = (centre[:, None] - jnp.sign(own) * BOX / 2) / own
    leave = ((centre[:, None] + jnp.sign(own) * BOX / 2) / own).min(0)
    near = enter.max(0)
    seen = (near < leave) & (near > 0) & (near < wall.depth)
    on_x = enter[0] > enter[1]
    face = -jnp.sign(jnp.where(on_x, own[0], own[1])) * jnp.where(on_x, axes[0].sum(), axes[1].sum())

    def row(height: float, depth: Array) -> Array:
        return ((EYE - height) / depth + SLOPE) * side / (2 * SLOPE)

    def joint(width: float, covered: Array) -> Joint:
        covered = jnp.minimum(covered, 1)
        return Joint((width + covered - 1) / 2 / covered, 1 / covered, jnp.minimum(1, width / covered))

    return Columns(
        top=row(HEIGHT, wall.depth),
        foot=row(0, wall.depth),
        light=wall.light,
        courses=wall.depth / COURSE,
        bricks=wall.along / BRICK_LENGTH,
        bed=joint(BED, wall.covered / COURSE),
        butt=joint(BUTT, wall.covered / BRICK_LENGTH),
        contrast=1 / (1 + (1.5 * wall.covered / COURSE) ** 4),
        box_top=jnp.where(seen, row(BOX, leave), 2.0 * side),
        box_edge=jnp.where(seen, row(BOX, near), 2.0 * side),
        box_foot=jnp.where(seen, row(0, near), 2.0 * side),
        box_light=SHADE + LAMP * SIDEWAYS * jnp.maximum(face, 0),
    )


# Surfaces --------------------------------------------------------------------------------------------------------


def _alternate(place: Array, slope: np.ndarray, pixel: float) -> Array:
    """1 on white tiles and -1 on black ones, along one axis, at ``place`` in metres on the floor seen at ``slope``.

    A texture has half the detail again and again until a texel covers a pixel, and mixes neighbouring texels. So edges
    are as wide as a texel, and from two tiles a texel on there is only the mean.
    """
    texel = EYE / slope**2 * pixel / TILE
    place = place / (2 * TILE)
    place = place - jnp.floor(place)
    sharp = (1 - 4 * jnp.minimum(jnp.abs(place - 0.25), jnp.abs(place - 1.25))) / np.minimum(texel, 1)
    return jnp.clip(sharp, -1, 1) * np.sqrt(np.clip(1 - np.log2(texel), 0, 1))


def _joint(place: Array, slope: np.ndarray, pixel: float) -> Array:
    """How much darker the ceiling seen at ``slope`` is at ``place`` in metres along one axis: slabs have joints."""
    covered = (HEIGHT - EYE) / slope**2 * pixel / SLAB
    place = place / SLAB
    return jnp.clip(covered - jnp.abs(place - jnp.round(place)), 0) * np.minimum(0.5, 0.5 / covered)


def _bricks(columns: Columns, slope: np.ndarray) -> list[Array]:
    """[3] of [rows, side]: every second course is shifted by half a brick, each brick has a shade of its own."""
    course = EYE / COURSE - columns.courses * slope
    number = jnp.floor(course)
    bricks = columns.bricks + 0.5 * number
    brick = jnp.floor(bricks)

    def mortar(joint: Joint, part: Array) -> Array:
        return jnp.clip(joint.middle + joint.rise * jnp.abs(part - 0.5), 0, joint.most)

    beds, butts = mortar(columns.bed, course - number), mortar(columns.butt, bricks - brick)
    butts = BUTT + (butts - BUTT) * columns.contrast
    joints = beds + butts - beds * butts
    luck = number * 0.754878 + brick * 0.569840
    luck = luck - jnp.floor(luck)
    luck = luck * (luck + 37.0) * 3.7
    redness = (2 * (luck - jnp.floor(luck)) - 1) * columns.contrast
    stains = _wave(columns.bricks * 0.41 + course * 0.05) + _wave(columns.bricks * 0.07 - course * 0.13)
    colours = []
    for mean, contrast, stain, line in zip(BRICK, BRICK_CONTRAST, STAIN, MORTAR, strict=True):
        stone = mean + contrast * redness
        colours.append(columns.light * (stone + joints * (line - stone) + stain * stains))
    return colours


def _wave(place: Array) -> Array:
    """A zigzag between -1 and 1."""
    return 4 * jnp.abs(place - jnp.floor(place) - 0.5) - 1
