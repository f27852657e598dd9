"""User code from outside the package, by name: ``module:Class``.

The user decides what is imported: by naming it on the command line (``--env my_module:PointMaze``, ``--import
my_module``), by importing it, or by installing a package that declares the entry point ``etd.plugins``. A file never
decides: a name in a run's record is resolved only if one of these holds.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from etd.core.errors import UserError, unknown

GROUP = "etd.plugins"
"""The entry point group in which an installed package declares its modules and, by short names, its classes."""

_named: set[str] = set()
"""Modules the user has named in this process."""


class NotTrustedError(UserError):
    """A file refers to a module the user has not named, imported or installed."""


@dataclass(frozen=True)
class Unavailable:
    """A part of a run whose class cannot be loaded: enough to report on the run, not to train or play."""

    name: str
    """module:Class"""
    fields: tuple[tuple[str, Any], ...]
    why: str
    """what to do about it"""


def is_name(text: str) -> bool:
    """Whether ``text`` has the form module:Class."""
    return bool(re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*", text))


def trust(modules: Iterable[str]) -> None:
    """Import modules the user has named, also from the working directory, and let runs use them."""
    for module in modules:
        _import(module)
        _named.add(module)


def named() -> tuple[str, ...]:
    """The modules the user has named so far."""
    return tuple(sorted(_named))


def load(name: str) -> Any:
    """The object the user names as ``module:Class``; its module is imported."""
    module, _, path = name.partition(":")
    trust([module])
    return _attribute(sys.modules[module], path, name)


def recall(name: str, harmless: Callable[[Any], bool] = lambda found: isinstance(found, type)) -> Any:
    """The object a file names as ``module:Class``: only from modules the user has named, imported or installed.

    From a module of ours or one that is merely imported, only ``harmless`` objects: the caller checks a class before
    instantiating it, but a function could be anything that happens to be loaded. Even a module that the user has named
    lends no functions but its own: that it imports ``os`` does not let a file call ``os.system``.
    """
    module, _, path = name.partition(":")
    if not is_name(name):
        raise UserError(f"{name!r} is not a valid name. Name a class outside etd as module:Class.")
    if _declared(module) or module in _named:
        found = _attribute(_import(module), path, name)
        if isinstance(found, type) or _top(getattr(found, "__module__", None)) == _top(module):
            return found
    elif _ours(module) or module in sys.modules:
        found = _attribute(_import(module), path, name)
        if harmless(found):
            return found
    raise NotTrustedError(_refusal(f"This run uses {name}", module))


def recall_module(module: str, why: str) -> ModuleType:
    """A module named by a file or an id, under the same condition; ``why`` begins the error message on failure."""
    if _ours(module) or module in _named or module in sys.modules or _declared(module):
        return _import(module)
    raise NotTrustedError(_refusal(why, module))


def short_names() -> dict[str, str]:
    """The classes that installed packages offer under a short name, as module:Class."""
    found: dict[str, str] = {}
    for point in _points():
        if ":" not in point.value:
            continue
        if found.setdefault(point.name, point.value) != point.value:
            raise UserError(
                f"Two installed packages use the name {point.name!r}: {found[point.name]} and {point.value}. Give the "
                "full name of the one you mean, or uninstall the other."
            )
    return found


def find(kind: type, ours: Mapping[str, type], name: str, load: Callable[[str], Any] = load) -> type:
    """The class called ``name``: one of ``ours``, one offered by an installed package, or module:Class."""
    word, offered = kind.__name__.lower(), short_names()
    if name in ours and name in offered:
        raise UserError(
            f"The name {name!r} is ambiguous: etd has one, and an installed package offers {offered[name]}. Give the "
            "full name of the latter, or uninstall its package."
        )
    if name in ours:
        return ours[name]
    name = offered.get(name, name)
    if not is_name(name):
        raise unknown(
            word, name, [*ours, *offered], f"Name your own as module:Class; derive it from etd.{kind.__name__}."
        )
    found = load(name)
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise UserError(f"{name} is not a {kind.__name__}: it must be a class derived from etd.{kind.__name__}.")
    return found


def instance(kind: type, ours: Mapping[str, type], given: Any, old: Any = None) -> Any:
    """A part from what the user passes: an object is returned as is; a class or its name is instantiated with the
    settings of ``old``, except for fields that the class redeclares."""
    found = find(kind, ours, given) if isinstance(given, str) else given
    if isinstance(found, kind | Unavailable):
        return found
    if not (isinstance(found, type) and issubclass(found, kind)):
        what = label(found if isinstance(found, type) else type(found))
        raise UserError(f"{what} is not a {kind.__name__}. Derive it from etd.{kind.__name__}.")
    shared = [] if old is None else [f.name for f in fields(old) if f.init and _inherits(found, old, f.name)]
    return construct(found, {name: getattr(old, name) for name in shared})


def construct(kind: type, values: Mapping[str, Any]) -> Any:
    """An object of a class, or a sentence on what else it would have to be given."""
    if inspect.isabstract(kind):
        lacks = ", ".join(sorted(getattr(kind, "__abstractmethods__", ())))
        raise UserError(f"{label(kind)} cannot be made: it is abstract. Derive a class that defines {lacks}.")
    try:
        inspect.signature(kind).bind(**values)
    except TypeError as error:
        raise UserError(
            f"{label(kind)} cannot be made: {error}. Give its fields defaults, or pass an object."
        ) from error
    return kind(**values)


def _inherits(kind: type, old: Any, name: str) -> bool:
    """Whether a field means the same in both classes: the class that declares it is an ancestor of both."""
    owner = next((one for one in kind.__mro__ if name in inspect.get_annotations(one)), None)
    return owner is not None and isinstance(old, owner)


def name_of(thing: Any) -> str | None:
    """module:Class of a class or function, or None if it cannot be found again by that name."""
    module, path = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "")
    if not module or module == "__main__" or "<" in path or module not in sys.modules:
        return None
    found: Any = sys.modules[module]
    if getattr(found, "__spec__", None) is None:  # typed interactively, not read from a file
        return None
    for part in path.split("."):
        found = getattr(found, part, None)
    return f"{module}:{path}" if found is thing else None


def label(thing: Any) -> str:
    """A display name, whether or not the thing can be found again by it."""
    return f"{getattr(thing, '__module__', '?')}:{getattr(thing, '__qualname__', type(thing).__name__)}"


def package_of(module: str) -> dict[str, str]:
    """The installed package and version a module comes from; empty for the user's own file without a version."""
    top = module.partition(".")[0]
    for package in _packages().get(top, ()):
        return {"package": package, "version": metadata.version(package)}
    version = getattr(sys.modules.get(top), "__version__", None)
    return {"version": str(version)} if version else {}


@lru_cache(maxsize=1)
def _packages() -> dict[str, list[str]]:
    return dict(metadata.packages_distributions())


@lru_cache(maxsize=1)
def _points() -> tuple[metadata.EntryPoint, ...]:
    return tuple(metadata.entry_points(group=GROUP))


def _top(module: str | None) -> str:
    return (module or "").partition(".")[0]


def _ours(module: str) -> bool:
    return _top(module) == "etd"


def _declared(module: str) -> bool:
    """Whether an installed package declares this module or a parent of it."""
    around = {point.value.partition(":")[0] for point in _points()}
    return any(module == one or module.startswith(f"{one}.") for one in around)


def _import(module: str) -> ModuleType:
    """Import the module, also from the working directory, as ``python`` itself would find it."""
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", module):
        raise UserError(f"{module!r} is not a module name.")
    here = str(Path.cwd())
    if "" not in sys.path and here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
            raise  # the module exists; one of its own imports is missing
        raise UserError(
            f"There is no module {module!r}, neither in the working directory nor among the installed packages."
        ) from error
    except SystemExit as error:
        raise UserError(
            f"Importing {module} ended the process (exit status {error.code}). Keep what it runs under "
            "`if __name__ == '__main__':`."
        ) from error


def _attribute(module: ModuleType, path: str, name: str) -> Any:
    found: Any = module
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            near = ", ".join(key for key, value in vars(module).items() if isinstance(value, type))[:200]
            has = f" It has {near}." if near else ""
            raise UserError(f"{module.__name__} has no {path!r}, so {name} cannot be found.{has}") from error
    return found


def _refusal(why: str, module: str) -> str:
    return (
        f"{why}. etd does not import modules just because a file names them: if you trust {module}, add "
        f"`--import {module}` (in Python: import it first)."
    )
