"""Convert experiments to and from plain data, for files and typed command-line overrides, and validate them.

An experiment is made of parts (an environment, a bonus, PPO, a mix, networks), each a frozen dataclass whose fields
are its settings. A file stores a part as its fields and, unless it is the default, its ``class``: the short name of one
of ours, or ``module:Class``. ``core.plugins`` decides which modules may be imported: only those the user has named,
never one that only a file names.
"""

from __future__ import annotations

import ast
import inspect
import math
import types
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from etd import bonuses
from etd.agent.ppo import PPO
from etd.bonuses import BONUSES, Bonus, Mixture
from etd.bonuses.mixture import Term
from etd.core import plugins
from etd.core.errors import UserError, unknown
from etd.core.limits import LARGEST
from etd.core.plugins import Unavailable
from etd.envs import Task, custom
from etd.envs.custom import Factory
from etd.nets.cells import CELLS, Cell
from etd.nets.trunks import Trunk
from etd.training.experiment import Experiment
from etd.training.reward import Mix

PARTS: dict[type, dict[str, type]] = {
    Experiment: {"experiment": Experiment},
    Task: {"task": Task},
    Bonus: dict(BONUSES),
    PPO: {"ppo": PPO},
    Mix: {"mix": Mix},
    Trunk: {"trunk": Trunk},
    Cell: dict(CELLS),
}
"""The kinds of parts, each with our classes by short name. If there is only one class, it is the default and files
omit its name."""


# Names -----------------------------------------------------------------------------------------------------------


def bonus_name(bonus: Any) -> str:
    """The short name of one of ours, ``module:Class`` of any other, or an expression of such names for a mixture."""
    if not isinstance(bonus, Mixture):
        return _class_name(bonus)
    weights = ["" if term.weight == 1 else f"{term.weight:g}*" for term in bonus.terms]
    terms = ["*".join(map(_class_name, term.factors)) for term in bonus.terms]
    return " + ".join(weight + term for weight, term in zip(weights, terms, strict=True))


def _class_name(part: Any) -> str:
    if isinstance(part, Unavailable):
        return part.name
    kind = part.make if isinstance(part, Factory) else type(part)
    for ours in PARTS.values():
        for name, known in ours.items():
            if kind is known:
                return name
    return plugins.label(kind)


def settings(part: Any) -> list[tuple[str, Any]]:
    """The fields of a part that differ from their defaults, whether or not its class can be imported."""
    if isinstance(part, Unavailable):
        return list(part.fields)
    if isinstance(part, Factory):
        return list(part.options)
    known = fields(part) if is_dataclass(part) and not isinstance(part, type) else ()
    return [(f.name, value) for f in known if f.init and (value := getattr(part, f.name)) != f.default]


def _default(part: Any) -> bool:
    """Whether a part's class is the default, which files omit."""
    return any(list(ours.values()) == [type(part)] for ours in PARTS.values())


# To plain data ---------------------------------------------------------------------------------------------------


def to_dict(value: Any) -> Any:
    """Nested dictionaries of numbers, strings and booleans. A value that cannot be stored becomes its repr;
    ``unwritable`` lists those."""
    if isinstance(value, tuple | list):
        return [to_dict(part) for part in value]
    if isinstance(value, Unavailable):
        return {"class": value.name, **dict(value.fields)}
    if isinstance(value, Factory):
        return {"class": _class_name(value), **{name: to_dict(option) for name, option in value.options}}
    if is_dataclass(value) and not isinstance(value, type):
        data = {f.name: to_dict(getattr(value, f.name)) for f in fields(value) if f.init}
        return data if _default(value) else {"class": _class_name(value), **data}
    if isinstance(value, np.generic):
        return value.item()
    return value if _is_plain(value) else {"unwritable": repr(value)[:200]}


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def unwritable(experiment: Experiment) -> list[str]:
    """A phrase for each thing in an experiment that cannot be restored from a file; empty if all of it can."""
    return [words for path, value in walk(experiment, "") if (words := _why_unwritable(path, value))]


def walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every part and every leaf value, with its path."""
    yield path, value
    if isinstance(value, Factory):
        for name, option in value.options:
            yield from walk(option, f"{path}.{name}")
    elif is_dataclass(value) and not isinstance(value, type):
        for f in fields(value):
            if f.init:
                yield from walk(getattr(value, f.name), f"{path}.{f.name}".lstrip("."))
    elif isinstance(value, tuple | list):
        for index, part in enumerate(value):
            yield from walk(part, f"{path}.{index}")


def _why_unwritable(path: str, value: Any) -> str:
    if isinstance(value, Factory) or (is_dataclass(value) and not isinstance(value, type)):
        kind = value.make if isinstance(value, Factory) else type(value)
        if plugins.name_of(kind) is None:
            return f"{path} is {plugins.label(kind)}, which is not in an importable module"
        return ""
    if isinstance(value, tuple | list | np.generic) or _is_plain(value):
        return ""
    return f"{path} is a {type(value).__name__}, which run.json cannot store"


def sources(experiment: Experiment) -> dict[str, dict[str, str]]:
    """The modules outside etd that an experiment's parts come from, with package and version where known."""
    found = {}
    for _, value in walk(experiment, ""):
        kind = value.make if isinstance(value, Factory) else type(value)
        if isinstance(value, Factory) or is_dataclass(value):
            module = str(getattr(kind, "__module__", ""))
            if module.partition(".")[0] != "etd":
                found[module] = plugins.package_of(module)
    return found


# From plain data -------------------------------------------------------------------------------------------------


def from_dict(data: Any, kind: type = Experiment) -> Any:
    """The inverse of ``to_dict`` for an experiment or a part of this kind; an unknown or ill-typed field is a UserError
    that names it. A part whose class is missing, or may not be imported, becomes ``Unavailable``."""
    return _build(kind, data, "")


def unavailable(experiment: Experiment) -> list[Unavailable]:
    """The parts whose class is missing, so the run cannot be trained or played."""
    return [value for _, value in walk(experiment, "") if isinstance(value, Unavailable)]


def _build(slot: type, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise UserError(f"{where.rstrip('.') or 'the experiment'} should be a group of fields, not {data!r}.")
    data = dict(data)
    ours = PARTS.get(slot, {slot.__name__: slot})
    name = data.pop("class", next(iter(ours)) if len(ours) == 1 else None)
    if not isinstance(name, str):
        raise UserError(f"{where}class should be the name of a {slot.__name__}, not {name!r}.")
    try:
        kind = find_class(slot, name, plugins.recall)
    except UserError as error:
        if not plugins.is_name(name) or slot in (Experiment, Term):  # nothing can be said about a run without these
            raise
        missing = Unavailable(name, tuple((key, _frozen(value)) for key, value in data.items()), str(error))
        return Task(name, missing) if slot is Task else missing
    return _construct(kind, data, where)


def _construct(kind: type, data: dict[str, Any], where: str) -> Any:
    hints = hints_of(kind)
    known = {f.name for f in fields(kind) if f.init}
    values = {}
    for name, value in data.items():
        if name not in known:
            raise unknown("field", f"{where}{name}", known, f"{kind.__name__} has {', '.join(sorted(known))}.")
        if issubclass(kind, Task) and name == "custom":
            values[name] = _custom(value, f"{where}{name}.")
        else:
            values[name] = _value(hints.get(name, Any), value, f"{where}{name}")
    return plugins.construct(kind, values)


def _custom(data: Any, where: str) -> Any:
    """The user's own environment."""
    if data is None:
        return None
    if not isinstance(data, dict) or not isinstance(data.get("class"), str):
        raise UserError(f"{where.rstrip('.')} should be a group of fields with a class, not {data!r}.")
    data = dict(data)
    name = data.pop("class")
    options = tuple((key, _frozen(value)) for key, value in data.items())
    try:
        kind = plugins.recall(name, custom.is_harmless)
    except UserError as error:
        return Unavailable(name, options, str(error))
    if custom.is_gymnasium(kind) or inspect.isroutine(kind):
        return Factory(kind, options)
    if not custom.may_be_built(kind):
        raise UserError(f"{name} is not an environment: neither a dataclass with reset and step nor a Gymnasium one.")
    return _construct(kind, data, where)


def _value(hint: Any, value: Any, path: str) -> Any:
    slot = part_hint(hint)
    if slot is not None and isinstance(value, dict):
        return _build(slot, value, f"{path}.")
    if slot is not None and not isinstance(value, slot) and not _alternatives(hint, value):
        raise UserError(f"{path} should be a group of fields, not {value!r}.")  # a name would be imported
    if get_origin(hint) is tuple and isinstance(value, list | tuple):
        inner = get_args(hint)
        kinds = [inner[0]] * len(value) if len(inner) == 2 and inner[1] is ... else list(inner)
        if len(kinds) != len(value):
            raise UserError(f"{path} takes {len(kinds)} values, not {len(value)}.")
        return tuple(_value(kind, part, f"{path}.{k}") for k, (kind, part) in enumerate(zip(kinds, value, strict=True)))
    return typed(hint, value, path)


def _frozen(value: Any) -> Any:
    """Lists as tuples, so that the part that holds them is hashable."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


@lru_cache(maxsize=256)
def hints_of(kind: Any) -> dict[str, Any]:
    """A class's annotations; empty if one cannot be resolved, such as an import under TYPE_CHECKING."""
    try:
        return get_type_hints(kind)
    except Exception:
        return {}


def part_hint(hint: Any) -> type | None:
    """The dataclass that a field holds, optionally or always; None if it holds none."""
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return next((one for one in options if isinstance(one, type) and is_dataclass(one)), None)


def _alternatives(hint: Any, value: Any) -> list[Any]:
    """What a field may hold besides its dataclass, if the value may be one of those."""
    others = [one for one in get_args(hint) if not is_dataclass(one)]
    return others if value is None else [one for one in others if one is not type(None)]


def find_class(slot: type, name: str, load: Callable[[str], Any] = plugins.load) -> type:
    """The class of a part by name: one of ours, one from an installed package, or ``module:Class``."""
    return plugins.find(slot, PARTS.get(slot, {slot.__name__: slot}), name, load)


# Overrides -------------------------------------------------------------------------------------------------------


def override(experiment: Experiment, assignment: str) -> Experiment:
    """Apply one ``path=value``, such as ``bonus.learning_rate=1e-4`` or ``ppo=my_module:MyPPO``."""
    return assign(experiment, *split(assignment))


def split(assignment: str) -> tuple[str, str]:
    """Path and value of ``path=value``."""
    path, equals, text = assignment.partition("=")
    if not equals:
        raise UserError(f"{assignment!r} is not an assignment. Write --set path=value, as in bonus.learning_rate=1e-4.")
    return path.strip(), text.strip()


def assign(experiment: Experiment, path: str, value: Any) -> Experiment:
    """Set the field at ``path``; a string is parsed to the field's type."""
    if not isinstance(path, str):
        raise UserError(f"{path!r} is not a field. Name fields by their path, as in 'ppo.entropy_coef'.")
    return _assign(experiment, path.split("."), value, path)


def _assign(target: Any, path: list[str], value: Any, whole: str) -> Any:
    head, *rest = path
    if isinstance(target, tuple):
        if not (head.isdigit() and int(head) < len(target) and rest):
            raise UserError(f"{whole!r}: give the index of one of {len(target)} parts and a field: terms.0.weight=2.")
        k = int(head)
        return (*target[:k], _assign(target[k], rest, value, whole), *target[k + 1 :])
    if isinstance(target, Factory):
        return _assign_option(target, head, rest, value, whole)
    if not is_dataclass(target) or isinstance(target, type):
        raise UserError(f"{whole!r} goes too deep: {whole.rsplit('.', len(path))[0]!r} is a single value.")
    known = [f.name for f in fields(target) if f.init]
    if isinstance(target, Task) and target.custom is not None and head not in known:
        return replace(target, custom=_assign(target.custom, path, value, whole))  # a field of the user's environment
    if head not in known:
        where = f" of {whole.rsplit('.', 1)[0]!r}" if "." in whole else ""
        raise unknown("field", head, known, f"The fields{where} are {', '.join(known)}.")
    old = getattr(target, head)
    if rest:
        return replace(target, **{head: _assign(old, rest, value, whole)})
    return replace(target, **{head: _assigned(hints_of(type(target)).get(head, Any), old, value, whole)})


def _assigned(hint: Any, old: Any, value: Any, whole: str) -> Any:
    slot = part_hint(hint)
    if slot is Task:
        return replace(Task.of(value), **_looks(old))
    if slot is Bonus and isinstance(value, str) and value not in BONUSES:
        return bonuses.make(value)
    if slot is not None and slot in PARTS:
        return plugins.instance(slot, PARTS[slot], value, old)
    if slot is not None and is_dataclass(old):
        inner = ", ".join(f.name for f in fields(old))
        raise UserError(f"{whole!r} is a group of fields ({inner}). Set one of them, as in {whole}.NAME=value.")
    if isinstance(value, str) and not _takes_text(hint):
        value = _parse(value)
    return _value(hint, value, whole)


def _looks(task: Task) -> dict[str, Any]:
    """Settings of the observations, which stay when the environment is replaced."""
    return {"noise": task.noise}


def _assign_option(factory: Factory, name: str, rest: list[str], value: Any, whole: str) -> Factory:
    """Set an argument of a Gymnasium environment, typed by its annotation or its default."""
    if rest:
        raise UserError(f"{whole!r} goes too deep: {whole.rsplit('.', len(rest))[0]!r} is a single value.")
    known = factory.parameters()
    if not factory.accepts(name):
        raise unknown("argument", name, known, f"{plugins.label(factory.make)} takes {', '.join(known) or 'none'}.")
    parameter = known.get(name)
    hint = hints_of(factory.make if inspect.isroutine(factory.make) else factory.make.__init__).get(name, Any)
    if hint is Any and parameter is not None and isinstance(parameter.default, bool | int | float | str):
        hint = type(parameter.default)
    value = _parse(value) if isinstance(value, str) and not _takes_text(hint) else value
    return replace(factory, options=tuple({**dict(factory.options), name: _value(hint, value, whole)}.items()))


def _takes_text(hint: Any) -> bool:
    if get_origin(hint) in (Union, types.UnionType):
        return any(map(_takes_text, get_args(hint)))
    return hint is str or (get_origin(hint) is Literal and all(isinstance(one, str) for one in get_args(hint)))


def _parse(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def typed(hint: Any, value: Any, where: str) -> Any:
    """``value`` converted to the type ``hint``, or a UserError."""
    origin = get_origin(hint)
    if isinstance(value, np.generic):
        value = value.item()
    if origin is Literal:
        if value not in get_args(hint):
            raise UserError(f"{where} cannot be {_short(value)}; it is one of {', '.join(map(repr, get_args(hint)))}.")
        return value
    if origin in (Union, types.UnionType):
        if type(None) in get_args(hint) and value in (None, "None"):
            return None
        options = [option for option in get_args(hint) if option is not type(None)]
        for option in options[:-1]:
            try:
                return typed(option, value, where)
            except UserError:
                continue
        return typed(options[-1], value, where)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) <= LARGEST else math.inf
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if hint not in _NAMES:  # a user-defined type, which only their class understands
        return _frozen(value)
    if not isinstance(value, hint) or (hint is not bool and isinstance(value, bool)):
        raise UserError(f"{where} takes {_NAMES[hint]}, not {_short(value)}.")
    return value


def _short(value: Any) -> str:
    words = repr(value)
    return words if len(words) < 80 else f"{words[:60]}..."


_NAMES: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}
