"""Names of things from outside: which can be found again by them, and which cannot."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest

from etd.core import plugins
from etd.core.errors import UserError
from etd.core.plugins import is_name, name_of


class Outer:
    class Inner:
        pass

    def method(self) -> None: ...


def function() -> None: ...


def test_a_name_leads_back_to_what_it_names() -> None:
    for thing in (Outer, Outer.Inner, Outer.method, function, UserError):
        name = name_of(thing)
        assert name == f"{thing.__module__}:{thing.__qualname__}"
        assert is_name(name)
        assert plugins.recall(name, harmless=lambda found: True) is thing


def test_what_cannot_be_found_again_has_no_name() -> None:
    class Local:
        pass

    def local() -> None: ...

    for thing in (Local, local, lambda: None, Outer(), 3):
        assert name_of(thing) is None


def test_what_a_script_defines_has_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run again or imported, ``__main__`` is another module."""
    scripted = type("Scripted", (), {"__module__": "__main__"})
    monkeypatch.setattr(sys.modules["__main__"], "Scripted", scripted, raising=False)
    assert name_of(scripted) is None
    assert plugins.label(scripted) == "__main__:Scripted"


def test_what_was_typed_in_has_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that no file stands behind, as notebooks have them."""
    typed = ModuleType("typed_in")
    exec("class Thing: pass", typed.__dict__)
    monkeypatch.setitem(sys.modules, "typed_in", typed)
    assert name_of(typed.Thing) is None


def test_a_name_that_means_something_else_by_now_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    old = function
    monkeypatch.setattr(sys.modules[__name__], "function", lambda: None)
    assert name_of(old) is None
    gone = type("Gone", (), {"__module__": "a_module_that_is_not_there"})
    assert name_of(gone) is None


@pytest.mark.parametrize(
    "text", ["module:Class", "a.b.c:D", "_a1._b:Outer.Inner", "größe:Maß", "my_module:make_walk"], ids=str
)
def test_names(text: str) -> None:
    assert is_name(text)


@pytest.mark.parametrize(
    "text",
    ["", "Class", "module:", ":Class", "a:b:c", "a b:C", "a..b:C", "1a:B", "a:1B", "a-b:C", "a:C()", "a:C\n", ".a:B"],
    ids=repr,
)
def test_what_is_no_name(text: str) -> None:
    assert not is_name(text)
    with pytest.raises(UserError, match="module:Class"):
        plugins.recall(text)


def test_packages_are_named_with_their_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plugins.package_of("numpy.linalg") == {"package": "numpy", "version": np.__version__}
    assert plugins.package_of("a_file_of_ones_own") == {}
    mine = ModuleType("mine")
    mine.__dict__["__version__"] = "0.3"
    monkeypatch.setitem(sys.modules, "mine", mine)
    assert plugins.package_of("mine.envs") == {"version": "0.3"}
