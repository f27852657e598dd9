"""Sums and products of bonuses, such as ``etd + 0.5*rnd`` or ``count*rnd``, to combine episodic and global terms.

    b = sum_i w_i prod_j b_ij

on the raw bonuses, before standardising; `etd check` reports how large each is. Every part keeps its own state and
learns as it would alone.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from operator import mul

import jax.numpy as jnp

from etd.bonuses.base import Bonus, BonusState, Scored
from etd.core import plugins
from etd.core.errors import UserError
from etd.core.keys import named
from etd.core.limits import limited
from etd.core.types import EnvSpec, Key, Metrics, PyTree, Rollout

MOST = 64
"""Bonuses in a mixture: each is compiled into the same program."""


@dataclass(frozen=True)
class Term:
    """The weight times the product of the factors."""

    weight: float
    factors: tuple[Bonus, ...] = limited((), least=1)


@dataclass(frozen=True)
class Mixture(Bonus):
    """The sum of its terms. The parts' states are stored in tuples."""

    terms: tuple[Term, ...] = limited((), least=1)
    """what is summed; ``--bonus`` and ``etd.Explorer`` read them from an expression"""

    @property
    def parts(self) -> tuple[Bonus, ...]:
        return tuple(factor for term in self.terms for factor in term.factors)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset(name for part in self.parts for name in part.needs)

    def refusal(self, spec: EnvSpec) -> str:
        return next(filter(None, (part.refusal(spec) for part in self.parts)), "")

    def init(self, key: Key, spec: EnvSpec, num_envs: int) -> BonusState:
        return _together(part.init(named(key, "part", k), spec, num_envs) for k, part in enumerate(self.parts))

    def score(self, state: BonusState, rollout: Rollout, key: Key) -> tuple[BonusState, Scored]:
        results = [
            part.score(one, rollout, named(key, "part", k))
            for k, (part, one) in enumerate(zip(self.parts, _apart(state), strict=True))
        ]
        left = [scored.bonus for _, scored in results]
        total = jnp.zeros_like(rollout.step.reward)
        for term in self.terms:
            factors, left = left[: len(term.factors)], left[len(term.factors) :]
            total += term.weight * reduce(mul, factors)
        metrics = self._labelled([{"mean": s.bonus.mean(), **s.metrics} for _, s in results])
        trace = tuple(scored.trace for _, scored in results)
        return _together(one for one, _ in results), Scored(total, trace, metrics)

    def improve(self, state: BonusState, rollout: Rollout, trace: PyTree, key: Key) -> tuple[BonusState, Metrics]:
        results = [
            part.improve(one, rollout, part_trace, named(key, "part", k))
            for k, (part, one, part_trace) in enumerate(zip(self.parts, _apart(state), trace, strict=True))
        ]
        return _together(one for one, _ in results), self._labelled([metrics for _, metrics in results])

    def _labelled(self, parts: list[Metrics]) -> Metrics:
        """Each part's metrics under its number and name, as in part0_etd_loss."""
        return {
            f"part{k}_{type(part).__name__.lower()}_{name}": value
            for k, (part, metrics) in enumerate(zip(self.parts, parts, strict=True))
            for name, value in metrics.items()
        }


def _together(states: Iterable[BonusState]) -> BonusState:
    return BonusState(*zip(*states, strict=True))


def _apart(state: BonusState) -> list[BonusState]:
    return [BonusState(*parts) for parts in zip(*state, strict=True)]


def parse(text: str, make: Callable[[str], Bonus]) -> Bonus:
    """The bonus described by an expression of names, numbers, ``+``, ``-`` and ``*``; ``make`` turns names into
    bonuses. A single name gives that bonus itself."""
    if plugins.is_name(text.strip()):
        return make(text.strip())
    if (count := len(re.findall(r"(?<![\w.])[^\W\d][\w.:]*", text))) > MOST:
        raise UserError(f"A mixture of {count} bonuses is too large to compile. Use at most {MOST}.")
    outside = re.findall(r"[^\W\d][\w.]*:[\w.]+", text)  # module:Class, which is not valid Python
    plain = text.strip()
    for index, name in enumerate(outside):
        plain = plain.replace(name, f"outside_{index}", 1)

    def lookup(name: str) -> Bonus:
        return make(outside[int(name.removeprefix("outside_"))] if name.startswith("outside_") else name)

    try:
        tree = ast.parse(plain, mode="eval").body
    except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
        raise _not_a_mixture(text) from error
    if isinstance(tree, ast.Name):
        return lookup(tree.id)
    try:
        expanded = _expand(tree, text)
    except (RecursionError, OverflowError) as error:
        raise _not_a_mixture(text) from error
    terms = tuple(Term(weight, tuple(map(lookup, names))) for weight, names in expanded)
    if not all(term.factors for term in terms):
        raise UserError(f"{text!r} has a term without a bonus; a constant reward does not explore. Remove it.")
    return Mixture(terms)


def _not_a_mixture(text: str) -> UserError:
    return UserError(f"{text[:80]!r} is not a sum or product of bonuses, such as 'etd + 0.5*rnd'.")


def _expand(node: ast.expr, text: str) -> list[tuple[float, tuple[str, ...]]]:
    """The expression multiplied out into (weight, names)."""
    if isinstance(node, ast.Name):
        return [(1.0, (node.id,))]
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and math.isfinite(node.value):
        return [(float(node.value), ())]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return [(-weight, names) for weight, names in _expand(node.operand, text)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult):
        left, right = _expand(node.left, text), _expand(node.right, text)
        if isinstance(node.op, ast.Mult):
            if len(left) * len(right) > MOST:
                raise UserError(f"{text!r} multiplies out to more than {MOST} terms, too many to compile.")
            return [(a * b, names + more) for a, names in left for b, more in right]
        sign = -1.0 if isinstance(node.op, ast.Sub) else 1.0
        return left + [(sign * weight, names) for weight, names in right]
    raise UserError(f"{ast.unparse(node)!r} in {text!r} is neither a bonus, a number, nor a sum or product of them.")
