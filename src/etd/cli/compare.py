"""Many runs at once: ``etd compare`` for any bonuses and environments, ``etd reproduce`` for the paper's figures."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from etd.cli.options import Bonuses, Envs, Flag, Import, Name, Number, Only, OptionalPath, Real, Set

if TYPE_CHECKING:
    from etd.lab.compare.compare import Comparison


def compare(
    env: Envs = (),
    bonus: Bonuses = (),
    seeds: int = 5,
    steps: Number = None,
    budget: Real = None,
    dry_run: Flag = False,
    workers: int = 1,
    cluster: Name = None,
    out: OptionalPath = None,
    keep: OptionalPath = None,
    set_: Set = (),
    import_: Import = (),
) -> None:
    """Train every bonus in every environment with the paper's settings and compare them; exit status 1 if one failed.

    Skips finished runs and resumes interrupted ones. For example:

        etd compare --env MiniGrid-DoorKey-8x8-v0 --bonus etd --bonus noveld --bonus none
        etd compare --env MiniGrid-DoorKey-8x8-v0 --env MiniGrid-MultiRoom-N6-v0 --bonus etd --bonus "etd + 0.5*rnd"
        etd compare --env MiniGrid-DoorKey-8x8-v0 --bonus etd --bonus my_module:Impact --steps 500_000 --workers 2

    Args:
        env: an id from `etd list environments`, or module:Class.
        bonus: a name from `etd list bonuses`, module:Class, or a sum or product such as "etd + 0.5*rnd".
        seeds: how many agents to train together.
        steps: environment steps per seed; the preset's if omitted.
        budget: stop cleanly within this many minutes and report what is left.
        dry_run: show the plan with estimated times, without training.
        workers: how many runs to train in parallel; each has its share of the devices.
        cluster: "auto" or the address of a Ray cluster to train on.
        out: directory of the runs, each in OUT/TASK/METHOD; runs/compare if omitted.
        keep: directory for copies of records and thinned metrics, small enough for a repository, and the figures.
        set_: override fields of every run, as in `etd train`; a bonus's field, only for bonuses that have it.
        import_: your own modules to import first.
    """
    _share_device(workers)
    from etd.core import plugins
    from etd.core.terminal import Terminal
    from etd.lab.compare import compare as comparing

    plugins.trust(import_)
    plan = comparing.plan_pairs(env, bonus, out or comparing.OUT, seeds=seeds, steps=steps, assignments=set_)
    if dry_run:
        comparing.show(plan, workers, Terminal())
        return
    _finish(comparing.carry_out(plan, "compare", budget=budget, workers=workers, cluster=cluster, keep=keep))


def reproduce(
    figure: tyro.conf.Positional[str],
    only: Only = (),
    seeds: Number = None,
    steps: Number = None,
    budget: Real = None,
    dry_run: Flag = False,
    quick: Flag = False,
    workers: Number = None,
    cluster: Name = None,
    out: OptionalPath = None,
    keep: OptionalPath = None,
    set_: Set = (),
    import_: Import = (),
) -> None:
    """Train what a figure of the paper needs and draw it; skips finished runs and resumes interrupted ones.

    For example:

        etd reproduce minigrid --dry-run
        etd reproduce minigrid --only "DoorKey-16x16/*" --only "*/etd" --budget 60
        etd reproduce minigrid --workers 6 --set precision=tensorfloat32
        etd reproduce aggregate --quick

    Args:
        figure: bonuses, minigrid, rivals, full-v1, noise, representation, aggregate, symmetry, energy, loss,
            crafter, craftax, miniworld, maze3d, dmc, metaworld or halfcheetah.
        only: train and draw only these, as TASK/METHOD with * as a wildcard.
        seeds: how many agents to train together; 5 if omitted, as in the paper.
        steps: environment steps per seed.
        budget: stop cleanly within this many minutes and report what is left.
        dry_run: show the plan with estimated times, without training.
        quick: small levels and agents, to test that everything works, in minutes on two cores.
        workers: how many runs to train in parallel, each with its share of the devices; if omitted, 1, or 2 with
            --quick, where compilation dominates.
        cluster: "auto" or the address of a Ray cluster to train on.
        out: directory of the runs; runs/FIGURE if omitted.
        keep: directory for copies of records and thinned metrics, small enough for a repository, and the figures.
        set_: override fields of every run, as in `etd train`; a bonus's field, only for bonuses that have it.
        import_: your own modules to import first.
    """
    workers = (2 if quick and not cluster else 1) if workers is None else workers
    _share_device(workers)
    from etd.core import plugins
    from etd.core.terminal import Terminal
    from etd.lab.compare.compare import show
    from etd.lab.paper import reproduce as paper

    plugins.trust(import_)
    out = out or Path("runs") / (f"{figure}-quick" if quick else figure)
    plan = paper.plan(figure, out, only=only, seeds=seeds, steps=steps, quick=quick, assignments=set_)
    if dry_run:
        show(plan, workers, Terminal())
        return
    _finish(paper.reproduce(figure, plan, budget=budget, workers=workers, cluster=cluster, keep=keep))


def _share_device(workers: int) -> None:
    """Parallel runs must not each reserve most of the device's memory; set this before JAX is initialised."""
    if workers > 1:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def _finish(comparison: Comparison) -> None:
    if comparison.stopped:  # as a shell reports a process that a signal has ended
        sys.exit(128 + comparison.stopped)
    if comparison.failures:
        sys.exit(1)
