"""``etd train``, ``resume``, ``evaluate`` and ``export``."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

if TYPE_CHECKING:
    from etd.lab.runs.store import Run

from etd.cli.options import Env, Flag, Import, Log, Name, Number, OptionalPath, Real, Set
from etd.core.words import say


def train(
    env: Env = None,
    bonus: Name = None,
    preset: Name = None,
    steps: Number = None,
    seeds: Number = None,
    seed: Number = None,
    out: OptionalPath = None,
    overwrite: Flag = False,
    until: Real = None,
    log: Log = (),
    set_: Set = (),
    import_: Import = (),
) -> None:
    """Train agents, by default with the paper's settings for the environment and bonus.

    For example:

        etd train --env MiniGrid-DoorKey-8x8-v0 --steps 150_000
        etd train --preset minigrid-none --seeds 5 --out runs/ppo
        etd train --env MiniGrid-DoorKey-16x16-v0 --set bonus.learning_rate=1e-4 --set ppo.cell=lstm
        etd train --env my_module:PointMaze --set env.size=9 --bonus my_module:Impact --set ppo=my_module:MyPPO

    Args:
        env: an id from `etd list environments`, or module:Class.
        bonus: a name from `etd list bonuses`, module:Class, or a sum or product such as "etd + 0.5*rnd"; etd if
            omitted.
        preset: a name from `etd list presets`, instead of env and bonus.
        steps: environment steps per seed.
        seeds: how many agents to train together.
        seed: the first agent's seed.
        out: the run's directory; runs/ENV-BONUS if omitted.
        overwrite: replace an existing run.
        until: stop once every seed's mean return over 100 episodes is this high.
        log: also log to tensorboard or wandb.
        set_: override fields, see `etd show`; a part (ppo, mix, ppo.trunk, ppo.cell, bonus.trunk) by name or
            module:Class.
        import_: your own modules to import first, such as one that registers Gymnasium environments.
    """
    from etd.core import plugins
    from etd.core.errors import UserError
    from etd.lab.runs import session
    from etd.training import presets
    from etd.training.config import assign, override

    plugins.trust(import_)
    if preset is not None and bonus is not None:
        raise UserError("A preset already has a bonus. Give --preset or --bonus, not both.")
    if preset is not None:
        experiment = presets.find(preset)
        experiment = assign(experiment, "env", env) if env is not None else experiment
    else:
        env = "MiniGrid-DoorKey-8x8-v0" if env is None else env
        experiment = presets.choose(env, "etd" if bonus is None else bonus)
    given: dict[str, Any] = {"steps": steps, "seeds": seeds, "seed": seed}
    experiment = replace(experiment, **{name: value for name, value in given.items() if value is not None})
    for assignment in set_:
        experiment = override(experiment, assignment)
    run = session.train(experiment=experiment, out=out, overwrite=overwrite, until=until, sinks=log)
    _finish(run)


def resume(
    run: tyro.conf.Positional[Path],
    steps: Number = None,
    until: Real = None,
    log: Log = (),
    import_: Import = (),
) -> None:
    """Continue a run exactly from its last checkpoint.

    For example:

        etd resume runs/DoorKey-8x8-v0-etd
        etd resume runs/DoorKey-8x8-v0-etd --steps 1_000_000

    Args:
        run: the run's directory.
        steps: a new total of environment steps per seed.
        until: stop once every seed's mean return over 100 episodes is this high.
        log: also log to tensorboard or wandb.
        import_: your own modules that the run uses.
    """
    from etd.core import plugins
    from etd.lab.runs import session

    plugins.trust(import_)
    done = session.resume(run, steps=steps, until=until, sinks=log)
    _finish(done)


def evaluate(run: tyro.conf.Positional[Path], episodes: int = 100, greedy: Flag = False, import_: Import = ()) -> None:
    """Play fresh episodes with each seed's trained policy.

    For example:

        etd evaluate runs/DoorKey-8x8-v0-etd --episodes 500

    Args:
        run: the run's directory, or that of an exported agent.
        episodes: how many per seed.
        greedy: take the most likely action instead of sampling.
        import_: your own modules that the run uses.
    """
    from etd.core import plugins
    from etd.lab.runs import evaluate as evaluation

    plugins.trust(import_)
    evaluation.table(evaluation.evaluate(run, episodes, greedy))


def export(
    run: tyro.conf.Positional[Path], out: Path, seed: Number = None, film: bool = True, import_: Import = ()
) -> None:
    """Write a trained agent to a folder that needs no run: weights, settings, a model card and a film.

    For example:

        etd export runs/DoorKey-8x8-v0-etd --out agents/doorkey
        etd evaluate agents/doorkey

    In Python, etd.Agent.load reads it.

    Args:
        run: the run's directory.
        out: the folder, which must not exist or be empty.
        seed: the seed whose agent it is; the first if omitted.
        film: also film an episode.
        import_: your own modules that the run uses.
    """
    from etd.core import plugins
    from etd.lab.film import watch
    from etd.lab.runs import export as exports
    from etd.lab.runs import session

    plugins.trust(import_)
    exports.refuse_folder(out)
    exports.write(*session.load(run), out, seed, film)
    if film:
        watch.film(out, out / exports.FILM)
    say(f"Exported: {out}. Next: etd evaluate {out}, etd watch {out}, or etd.Agent.load in Python")


def _finish(run: Run) -> None:
    say(f"The run is in {run.path}. Next: etd report {run.path}, etd watch {run.path}")
    if run.stopped:  # as a shell reports a process that a signal has ended
        sys.exit(128 + run.stopped)
