"""``etd check``."""

from __future__ import annotations

import sys
from pathlib import Path

import tyro

from etd.cli.options import Import, Number, Set


def check(
    run: tyro.conf.Positional[Path | None] = None,
    env: str = "MiniGrid-DoorKey-8x8-v0",
    bonus: str = "etd",
    seed: Number = None,
    set_: Set = (),
    import_: Import = (),
) -> None:
    """Check an environment against its spec, and a bonus in it, with a short random run.

    The exit status is 1 if something is wrong.

    For example:

        etd check --bonus rnd
        etd check --env my_module:PointMaze --bonus my_module:Impact
        etd check runs/PointMaze-Impact --import my_module

    Args:
        run: a run's directory, instead of env and bonus.
        env: an id from `etd list environments`, or module:Class.
        bonus: a name from `etd list bonuses`, module:Class, or a sum or product such as "etd + 0.5*rnd".
        seed: the seed of levels, actions and weights.
        set_: override fields, as in `etd train`.
        import_: your own modules to import first.
    """
    from etd.core import plugins
    from etd.core.terminal import Terminal
    from etd.lab.check import bonus as bonuses
    from etd.lab.check import env as envs
    from etd.lab.runs.store import Run
    from etd.training import presets
    from etd.training.config import bonus_name, override

    plugins.trust(import_)
    experiment = Run.open(run).require() if run else presets.choose(env, bonus)
    for assignment in (*set_, *([f"seed={seed}"] if seed is not None else [])):
        experiment = override(experiment, assignment)
    bonuses.prepare(experiment)  # before the environment is compiled
    console = Terminal(soft_wrap=True)
    good = True
    for title, examine in (
        (experiment.env.id, lambda: envs.examine(experiment.env, experiment.seed)),
        (f"{bonus_name(experiment.bonus)} in it", lambda: bonuses.examine(experiment)),
    ):
        with console.status("compiling and playing; about a minute on a CPU"):
            findings = examine()
        console.print(f"{title}:", style="bold")
        for finding in findings:
            mark = "[green]ok[/green]   " if finding.good else "[red]wrong[/red]"
            console.print(f"  {mark}  ", end="", markup=True)
            console.print(finding.words)
        good = good and all(finding.good for finding in findings)
        if not good:  # a bonus cannot be judged in a broken environment
            sys.exit(1)
