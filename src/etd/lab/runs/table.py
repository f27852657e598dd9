"""The table in metrics.csv: one row of numbers per iteration and seed.

A killed process, a full disk, an editor or another system may leave lines that are no such rows. They are left out, and
the user is told.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from etd.core.words import counted

LARGEST = 1 << 31
"""Bytes; the longest trainings write a hundredth of it."""
LISTED = 4
"""Gaps that are listed one by one."""
_NEEDED = ("iteration", "seed", "step", "wall")
"""Columns that are finite in every row."""
_WHOLE = re.compile(r"-?[0-9]{1,18}")  # what 64 bits are sure to hold


class Table(NamedTuple):
    """What could be read."""

    header: list[str]
    """empty if the first line is none"""
    rows: list[list[str]]
    """as written, ordered by iteration, then seed"""
    numbers: list[list[float]]
    """the same as numbers; NaN for an empty cell"""
    unreadable: int = 0
    """lines that are no rows of this run; a last line without its end, which a killed process leaves, does not count"""
    repeated: int = 0
    """rows that a later one replaces"""

    def iterations(self) -> list[int]:
        """The iteration of each row."""
        return [int(row[self.header.index("iteration")]) for row in self.numbers]

    def columns(self) -> dict[str, np.ndarray]:
        """Each column [rows], as integers if all its cells are written as such."""
        if not self.rows:
            return {}
        cells = zip(self.header, zip(*self.rows, strict=True), zip(*self.numbers, strict=True), strict=True)
        return {name: _column(words, values) for name, words, values in cells}


def _column(words: tuple[str, ...], values: tuple[float, ...]) -> np.ndarray:
    whole = all(map(_WHOLE.fullmatch, words))
    return np.array([int(cell) for cell in words], np.int64) if whole else np.array(values)


def parse(content: bytes, seeds: range) -> Table:
    """The table of a run with these seeds."""
    text = content.decode("utf-8-sig", "replace")
    lines = [_cells(line.removesuffix("\r")) for line in text.split("\n")[:-1]]
    if not lines:
        return Table([], [], [])
    header, *rows = lines
    if not {"iteration", "seed"} <= set(header) or len(set(header)) < len(header):
        return Table([], [], [], unreadable=len(lines))
    iteration, seed = header.index("iteration"), header.index("seed")
    needed = [header.index(name) for name in _NEEDED if name in header]
    found: dict[tuple[float, float], tuple[list[str], list[float]]] = {}
    readable = 0
    for row in rows:
        numbers = _numbers(row)
        if len(numbers) == len(header) and all(math.isfinite(numbers[column]) for column in needed):
            place = numbers[iteration], numbers[seed]
            if place[0] >= 1 and place[0] % 1 == place[1] % 1 == 0 and seeds.start <= place[1] < seeds.stop:
                found[place] = row, numbers
                readable += 1
    ordered = [found[place] for place in sorted(found)]
    words, values = [row for row, _ in ordered], [numbers for _, numbers in ordered]
    return Table(header, words, values, len(rows) - readable, readable - len(found))


def _cells(line: str) -> list[str]:
    if '"' not in line:
        return line.split(",")
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return []


def _numbers(row: list[str]) -> list[float]:
    """Empty if a cell is none."""
    try:
        return [float(cell or "nan") for cell in row]
    except ValueError:
        return []


def text(rows: Iterable[list[str]]) -> str:
    """Rows, the header among them, as the content of a file; all lines end alike."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return stream.getvalue()


def flaws(table: Table, seeds: range, upto: int) -> str:
    """What is wrong with a table that should have every iteration up to ``upto``, in a phrase; empty if nothing is."""
    found = []
    if table.unreadable:
        found.append(f"{counted(table.unreadable, 'line')} cannot be read")
    if gaps := _gaps(table, seeds, upto):
        spans = [str(first) if first == last else f"{first} to {last}" for first, last in gaps[:LISTED]]
        more = " and others" if len(gaps) > LISTED else ""
        found.append(f"rows of iteration{'s' * (gaps != [(upto, upto)])} {', '.join(spans)}{more} are missing")
    if table.repeated:
        found.append(f"{counted(table.repeated, 'row')} were written twice, of which the last counts")
    return ", ".join(found)


def _gaps(table: Table, seeds: range, upto: int) -> list[tuple[int, int]]:
    """The first and last iteration of each stretch in which a seed's row is missing."""
    whole = sorted(number for number, rows in Counter(table.iterations()).items() if rows == len(seeds))
    around = [0, *(number for number in whole if number <= upto), upto + 1]
    return [(before + 1, after - 1) for before, after in pairwise(around) if after - before > 1]
