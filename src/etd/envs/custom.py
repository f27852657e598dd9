"""Users' own environments: a DeviceEnv, or a factory of Gymnasium environments."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from typing import Any, get_args, get_type_hints

import jax
import numpy as np

from etd.core import plugins
from etd.core.errors import UserError
from etd.core.types import Box, Discrete, EnvSpec, Transition


@dataclass(frozen=True)
class Factory:
    """Creates a Gymnasium environment: a class or function, and the arguments to call it with."""

    make: Callable[..., Any]
    options: tuple[tuple[str, Any], ...] = ()

    def __call__(self, **more: Any) -> Any:
        return self.make(**dict(self.options), **more)

    def parameters(self) -> dict[str, inspect.Parameter]:
        """Its parameters by name; empty if it has no signature."""
        try:
            return dict(inspect.signature(self.make).parameters)
        except (TypeError, ValueError):
            return {}

    def accepts(self, name: str) -> bool:
        known = self.parameters()
        return name in known or any(one.kind is inspect.Parameter.VAR_KEYWORD for one in known.values())


def is_gymnasium(thing: Any) -> bool:
    """Whether it is a Gymnasium environment class. If it is, Gymnasium has already been imported."""
    gymnasium = sys.modules.get("gymnasium")
    return bool(gymnasium and isinstance(thing, type) and issubclass(thing, gymnasium.Env))


def adopt(thing: Any) -> Any:
    """A DeviceEnv (from an object, or from its class with default fields) or a Factory; a UserError for the rest."""
    gymnasium = sys.modules.get("gymnasium")
    if isinstance(thing, Factory):
        return thing
    if gymnasium and isinstance(thing, gymnasium.Env):
        raise UserError(
            f"{plugins.label(type(thing))} is a single Gymnasium environment, but training needs many. Pass its class, "
            "or a function that creates one."
        )
    if is_gymnasium(thing) or inspect.isroutine(thing):
        return Factory(thing)
    if isinstance(thing, type):
        return adopt(plugins.construct(thing, {}))
    lacking = [name for name in ("spec", "reset", "step") if not hasattr(thing, name)]
    if len(lacking) == 3:
        what = repr(thing) if isinstance(thing, str | int | float) else plugins.label(type(thing))
        raise UserError(
            f"{what} is not an environment. Pass an id, a DeviceEnv, a Gymnasium class or a function that creates one."
        )
    if lacking:
        raise UserError(
            f"{plugins.label(type(thing))} has no {' and no '.join(lacking)}; a DeviceEnv has spec, reset and step."
        )
    if not isinstance(thing.spec, EnvSpec):
        raise UserError(f"{plugins.label(type(thing))}.spec is {type(thing.spec).__name__}, not an etd.EnvSpec.")
    try:
        hash(thing)
    except TypeError as error:
        raise UserError(
            f"{plugins.label(type(thing))} cannot be hashed ({error}), so it cannot be static under jit. Make it a "
            "frozen dataclass whose fields are numbers, strings or tuples."
        ) from error
    return thing


def may_be_built(kind: Any) -> bool:
    """Whether a file may instantiate this class: a dataclass with an environment's methods, or a Gymnasium class."""
    return is_gymnasium(kind) or (is_dataclass(kind) and hasattr(kind, "reset") and hasattr(kind, "step"))


def is_harmless(found: Any) -> bool:
    """Whether a file may call this though the user did not name its module: an environment class, or a function
    annotated to return a Gymnasium environment."""
    if not inspect.isroutine(found):
        return may_be_built(found)
    try:
        return is_gymnasium(get_type_hints(found).get("return"))
    except Exception:  # unresolvable annotations prove nothing
        return False


def verify(env: Any) -> None:
    """Check the shapes and types an environment returns against its spec; a UserError for the first mismatch.
    Exceptions from the user's own code pass through."""
    name, spec = plugins.label(type(env)), env.spec
    if not isinstance(spec, EnvSpec):
        raise UserError(f"{name}.spec is {type(spec).__name__}, not an etd.EnvSpec.")
    _verify_spec(name, spec)
    key = jax.random.key(0)
    started = jax.eval_shape(env.reset, key)
    if not (isinstance(started, tuple) and len(started) == 2):
        raise UserError(f"{name}.reset must return (state, observation).")
    state, obs = started
    _same(f"{name}.reset's observation", obs, spec)
    lead, kind = ((), np.int32) if isinstance(spec.action, Discrete) else ((spec.action.size,), np.float32)
    stepped = jax.eval_shape(env.step, state, jax.ShapeDtypeStruct(lead, kind), key)
    if not (isinstance(stepped, tuple) and len(stepped) == 2 and isinstance(stepped[1], Transition)):
        raise UserError(f"{name}.step must return (state, etd.Transition).")
    after, transition = stepped
    _same(f"{name}.step's next_obs", transition.next_obs, spec)
    for field, wanted in (("reward", "float32"), ("terminated", "bool"), ("truncated", "bool")):
        leaf = getattr(transition, field)
        if leaf.shape != () or leaf.dtype != wanted:
            raise UserError(f"{name}.step's {field} is {leaf.dtype}{list(leaf.shape)}; it must be {wanted}[].")
    before_leaves, after_leaves = (jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), one) for one in (state, after))
    if before_leaves != after_leaves:
        raise UserError(
            f"{name}.step returns a state whose shapes or types differ from reset's: {after_leaves} after "
            f"{before_leaves}. A compiled loop needs them equal."
        )


def _verify_spec(name: str, spec: EnvSpec) -> None:
    if not isinstance(spec.action, Discrete | Box):
        raise UserError(f"{name}.spec.action is {spec.action!r}; it must be etd.Discrete or etd.Box.")
    count = spec.action.n if isinstance(spec.action, Discrete) else spec.action.size
    if not (isinstance(count, int | np.integer) and count >= 1):
        raise UserError(f"{name} has no actions: its spec says {spec.action}. Give it at least one.")
    if isinstance(spec.action, Box) and not -np.inf < spec.action.low < spec.action.high < np.inf:
        raise UserError(f"{name} has no range of actions: its spec says {spec.action}. Give finite bounds, low < high.")
    if not spec.obs_shape or min(spec.obs_shape) < 1:
        raise UserError(f"{name} has no observations: its spec's obs_shape is {spec.obs_shape}.")
    if spec.kind not in get_args(get_type_hints(EnvSpec)["kind"]):
        raise UserError(f"{name}.spec.kind is {spec.kind!r}; it must be 'grid', 'pixels' or 'vector'.")
    if spec.max_steps < 1 or not 1 <= spec.shortest <= spec.max_steps:
        raise UserError(
            f"{name}.spec says that episodes take {spec.shortest} to {spec.max_steps} steps (shortest, max_steps). "
            "shortest must be at least 1 and at most max_steps."
        )


def _same(what: str, leaf: Any, spec: EnvSpec) -> None:
    if tuple(leaf.shape) != tuple(spec.obs_shape) or leaf.dtype != spec.obs_dtype:
        raise UserError(
            f"{what} is {leaf.dtype}{list(leaf.shape)}; the spec says {spec.obs_dtype}{list(spec.obs_shape)}."
        )
