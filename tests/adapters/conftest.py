from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import quick_compilation


@pytest.fixture(autouse=True, scope="module")
def compile_quickly() -> Iterator[None]:
    with quick_compilation():
        yield


@pytest.fixture(scope="module")
def examples() -> Iterator[Path]:
    """The folder of examples, whose files can be imported."""
    folder = Path(__file__).parents[2] / "examples"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder
