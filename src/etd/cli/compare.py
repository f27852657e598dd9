"""``etd reproduce``."""

from __future__ import annotations

import os
from pathlib import Path

import tyro
from rich.console import Console

from etd.cli.options import Flag, Name, Number, Only, OptionalPath, Real, Set
from etd.core.errors import UserError


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
) -> None:
    """Train what a figure of the paper needs and draw it; skips what is done, resumes what was interrupted.

    For example:

        etd reproduce minigrid --dry-run
        etd reproduce minigrid --only "DoorKey-16x16/*" --only "*/etd" --budget 60
        etd reproduce minigrid --workers 6 --set precision=tensorfloat32
        etd reproduce aggregate --quick

    Args:
        figure: bonuses, minigrid, full-v1, noise, representation, aggregate, symmetry, energy, loss, crafter,
            craftax, miniworld, dmc, metaworld or halfcheetah.
        only: train and draw these cells only, TASK/METHOD with * for any.
        seeds: how many agents to train together; the paper's 5 if not given.
        steps: environment steps per seed.
        budget: stop cleanly within so many minutes and say what is left.
        dry_run: show the plan with estimated times, and train nothing.
        quick: small levels and agents, to see that everything works, on two cores in minutes.
        workers: so many trainings side by side on this device; 1 if not given, or 2 with --quick, for what takes its
            time there is one compilation after another.
        cluster: "auto" or the address of a Ray cluster to train on.
        out: the runs' directory; runs/FIGURE if not given.
        keep: copy records and thinned metrics there, for a repository, and draw there.
        set_: override fields of every cell, as in `etd train`.
    """
    workers = workers or (2 if quick and not cluster else 1)
    if workers > 1:  # programs side by side must not each reserve most of the device's memory
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    from etd.lab.compare import reproduce

    out = out or Path("runs") / (f"{figure}-quick" if quick else figure)
    if keep and keep.resolve() == out.resolve():
        raise UserError(f"{keep} holds the runs themselves, which copies would thin. Choose another folder for --keep.")
    places = reproduce.plan(figure, out, only, seeds, steps, quick, set_)
    console = Console(highlight=False)
    console.print(reproduce.table(places, quick, workers))
    if dry_run:
        return
    places = reproduce.run(places, budget, workers, cluster, quick)
    shown = reproduce.keep(places, keep) if keep else places
    for path in reproduce.draw(figure, shown, keep or out):
        console.print(f"Written: {path}", soft_wrap=True)
    left = [place.cell.name for place in places if not place.done]
    if left:
        console.print(f"Left: {', '.join(left)}. The same command goes on where it stopped.", soft_wrap=True)
