"""A user's mistake ends with one sentence and the exit status 2, without a traceback, and leaves nothing behind."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from etd.core.errors import UserError
from etd.training import presets
from etd.training.config import override
from etd.training.validate import check
from tests.mistakes import calls, commands, fields, system
from tests.mistakes.children import Parent, Row

ROWS = [*commands.ROWS, *calls.ROWS, *system.ROWS]


@pytest.fixture(scope="module")
def parent() -> Iterator[Parent]:
    parent = Parent()
    yield parent
    parent.close()


def test_there_are_hundreds() -> None:
    assert len({(row.what, *row.files.items(), *row.env.items(), row.when) for row in ROWS}) == len(ROWS) >= 300


@pytest.mark.parametrize(
    "row",
    [*ROWS, *(pytest.param(row, marks=pytest.mark.slow) for row in system.SLOW)],
    ids=[row.name for row in (*ROWS, *system.SLOW)],
)
def test_a_mistake_gets_a_sentence(row: Row, parent: Parent) -> None:
    ended = parent.run(row)
    assert ended.status == row.status, ended
    assert row.own or "Traceback" not in ended.said, ended
    assert re.search(row.says, ended.said), ended
    assert row.leaves or not ended.changed, ended


@pytest.mark.parametrize(("preset", "assignment", "says"), fields.ROWS)
def test_a_number_beyond_its_limits_is_refused(preset: str, assignment: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        check(override(presets.find(preset), assignment))
