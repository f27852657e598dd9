"""Reproduce a figure of the paper: train its entries as a comparison, and judge its claims by what has run."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from etd.lab.compare import plan as plans
from etd.lab.compare.compare import Comparison, carry_out
from etd.lab.compare.plan import Plan
from etd.lab.paper import claims, figures


def plan(
    figure: str,
    out: Path,
    *,
    only: tuple[str, ...] = (),
    seeds: int | None = None,
    steps: int | None = None,
    quick: bool = False,
    assignments: tuple[str, ...] = (),
) -> Plan:
    """The figure's runs, as planned by ``compare.plan.make``; small ones if ``quick``."""
    entries = figures.entries(figure)
    if quick:
        entries = [figures.small(entry) for entry in entries]
    return plans.make(entries, out, only=only, seeds=seeds, steps=steps, assignments=assignments, quick=quick)


def reproduce(
    figure: str,
    plan: Plan,
    *,
    budget: float | None = None,
    workers: int = 1,
    cluster: str | None = None,
    keep: Path | None = None,
) -> Comparison:
    """Train what the figure still needs, plot it, and judge the paper's claims."""
    judge = partial(claims.judge, figure)
    return carry_out(plan, figure, budget=budget, workers=workers, cluster=cluster, keep=keep, judge=judge)
