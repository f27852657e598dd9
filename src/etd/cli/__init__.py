"""The command line: ``etd COMMAND``. Each command is a function; tyro makes options of its parameters."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from etd.cli.compare import compare, reproduce
from etd.cli.options import Cell as _Cell
from etd.cli.options import Env as _Env
from etd.cli.options import Flag as _Flag
from etd.cli.options import Log as _Log
from etd.cli.options import Name as _Name
from etd.cli.options import Number as _Number
from etd.cli.options import Path as _Path
from etd.cli.options import Real as _Real
from etd.cli.options import Set as _Set
from etd.core.errors import UserError


def list_(what: tyro.conf.Positional[str] = "all") -> None:
    """What there is: environments, bonuses, presets.

    For example:

        etd list
        etd list presets

    Args:
        what: environments, bonuses, presets or all.
    """
    from etd.bonuses import BONUSES
    from etd.core.errors import unknown
    from etd.train.presets import PRESETS

    sections = {
        "environments": _environments(),
        "bonuses": [(name, _first_line(kind)) for name, kind in BONUSES.items()],
        "presets": [(name, _summary(preset)) for name, preset in PRESETS.items()],
    }
    if what != "all" and what not in sections:
        raise unknown("list of", what, sections, f"Ask for {', '.join(sections)} or all.")
    for title, rows in sections.items():
        if what in ("all", title):
            table = Table(title=title, title_justify="left", box=None, show_header=False, padding=(0, 2))
            for row in rows:
                table.add_row(*row)
            Console().print(table)


def _environments() -> list[tuple[str, str]]:
    """Each id, and what there is to say of it; after a suite's own, what its prefix opens."""
    from etd.envs import host, ids

    opened = {suite.ids[-1]: suite for suite in host.SUITES if suite.prefix and suite.ids}
    rows = []
    for name in ids():
        rows.append((name, _install(name)))
        if name in opened:
            suite = opened[name]
            rows.append((f"{suite.prefix}...", f"{suite.more} {_install(name)}"))
    rest = [suite for suite in host.SUITES if not suite.ids]
    return [*rows, *((f"{suite.prefix}...", f"{suite.more} {_install(suite.prefix)}") for suite in rest)]


def _install(env: str) -> str:
    """What an environment still needs."""
    from etd.envs import missing_extra

    extra = missing_extra(env)
    return f"(pip install 'etd\\[{extra}]')" if extra else ""  # escaped: rich reads brackets as markup


def _summary(preset: Any) -> str:
    return f"{preset.env.id}, {preset.steps:,} steps {_install(preset.env.id)}"


def _first_line(kind: type) -> str:
    return (sys.modules[kind.__module__].__doc__ or "").strip().splitlines()[0]


def show(preset: tyro.conf.Positional[str], set_: _Set = ()) -> None:
    """Every field of a preset, as an experiment would run it.

    For example:

        etd show minigrid-etd
        etd show obstructedmaze-etd --set ppo.entropy_coef=5e-4

    Args:
        preset: a name from `etd list presets`.
        set_: override fields, as in `etd train`.
    """
    from etd.lab.runs.config import check, override, to_dict
    from etd.train import presets

    experiment = presets.find(preset)
    for assignment in set_:
        experiment = override(experiment, assignment)
    print(json.dumps(to_dict(check(experiment)), indent=2))


def train(
    env: _Env = None,
    bonus: str = "etd",
    preset: _Name = None,
    steps: _Number = None,
    seeds: _Number = None,
    seed: _Number = None,
    out: _Path = None,
    overwrite: _Flag = False,
    until: _Real = None,
    log: _Log = (),
    set_: _Set = (),
) -> None:
    """Train agents; without a preset, with the paper's settings for this environment and bonus.

    For example:

        etd train --env MiniGrid-DoorKey-8x8-v0 --steps 150_000
        etd train --preset minigrid-none --seeds 5 --out runs/ppo
        etd train --env MiniGrid-DoorKey-16x16-v0 --set bonus.learning_rate=1e-4 --set ppo.norm=layer

    Args:
        env: an id from `etd list environments`.
        bonus: a name from `etd list bonuses`, or a sum or product such as "etd + 0.5*rnd".
        preset: a name from `etd list presets`, in place of env and bonus.
        steps: environment steps per seed.
        seeds: how many agents to train together.
        seed: the first agent's seed.
        out: the run's directory; runs/ENV-BONUS if not given.
        overwrite: replace a run that is there already.
        until: stop once every seed's mean return over 100 episodes is this high.
        log: also log to tensorboard or wandb.
        set_: override fields, see `etd show`.
    """
    from etd.lab.runs import session
    from etd.lab.runs.config import override
    from etd.train import presets

    experiment = presets.find(preset) if preset else presets.choose(env or "MiniGrid-DoorKey-8x8-v0", bonus)
    if preset and env:
        experiment = replace(experiment, env=replace(experiment.env, id=env))
    given: dict[str, Any] = {"steps": steps, "seeds": seeds, "seed": seed}
    experiment = replace(experiment, **{name: value for name, value in given.items() if value is not None})
    for assignment in set_:
        experiment = override(experiment, assignment)
    run = session.train(experiment=experiment, out=out, overwrite=overwrite, until=until, sinks=log)
    print(f"The run is in {run.path}. Next: etd report {run.path}, etd watch {run.path}")


def resume(run: tyro.conf.Positional[Path], steps: _Number = None, until: _Real = None, log: _Log = ()) -> None:
    """Continue a run exactly where its last checkpoint stands.

    For example:

        etd resume runs/DoorKey-8x8-v0-etd
        etd resume runs/DoorKey-8x8-v0-etd --steps 1_000_000

    Args:
        run: the run's directory.
        steps: a new end, in environment steps per seed.
        until: stop once every seed's mean return over 100 episodes is this high.
        log: also log to tensorboard or wandb.
    """
    from etd.lab.runs import session

    done = session.resume(run, steps=steps, until=until, sinks=log)
    print(f"The run is in {done.path}. Next: etd report {done.path}, etd watch {done.path}")


def evaluate(run: tyro.conf.Positional[Path], episodes: int = 100, greedy: _Flag = False) -> None:
    """Play fresh episodes with each seed's trained policy.

    For example:

        etd evaluate runs/DoorKey-8x8-v0-etd --episodes 500

    Args:
        run: the run's directory.
        episodes: how many per seed.
        greedy: take the likeliest action instead of sampling one.
    """
    from etd.lab.runs import evaluate as evaluation

    evaluation.table(evaluation.evaluate(run, episodes, greedy))


def watch(
    run: tyro.conf.Positional[Path],
    out: _Path = None,
    seed: _Number = None,
    episodes: int = 3,
    greedy: _Flag = False,
    distance: _Flag = False,
) -> None:
    """Film an episode with the bonus drawn beside it, as GIF or MP4; needs no display.

    For example:

        etd watch runs/DoorKey-8x8-v0-etd
        etd watch --distance runs/DoorKey-8x8-v0-etd

    Args:
        run: the run's directory.
        out: the film; RUN/episode.gif if not given. A name ending in .mp4 makes an MP4.
        seed: whose policy; that of the highest final return if not given.
        episodes: how many to play; the first solved one is filmed.
        greedy: take the likeliest action instead of sampling one.
        distance: also draw the learned distance from the agent to every reachable cell (bonus etd).
    """
    from etd.lab.film import watch

    out = out or run / ("distance.gif" if distance else "episode.gif")
    print(f"Filmed: {watch.film(run, out, seed, episodes, greedy, distance)}")


def distance(
    study: tyro.conf.Positional[str] = "spiral",
    maze: _Name = None,
    walks: int = 100,
    length: int = 50,
    discount: float = 0.99,
    energy: str = "mrn+potential",
    loss: str = "symmetric",
    seeds: int = 5,
    seed: int = 0,
    steps: _Number = None,
    noise: _Flag = False,
    start: _Cell = None,
    red: _Cell = None,
    to: _Flag = False,
    out: _Path = None,
) -> None:
    """Learn distances from random walks in a maze and hold them against the exact ones: pictures, numbers, a page.

    For example:

        etd distance
        etd distance noisy --seeds 3
        etd distance --maze my-maze.txt --walks 1000 --red 3 7

    Args:
        study: spiral; noisy (4 energies x 3 losses); hard; one-way; data (spiral with 100, 300, 1000 walks).
        maze: another maze: Spiral, Interlocked, Hard, HardSmall, OneWay, or a file with a drawing.
        walks: how many; data has its own.
        length: steps of a walk.
        discount: of the futures and of the exact distance.
        energy: ETD's: cos, l2, mrn or mrn+potential.
        loss: ETD's: forward, backward or symmetric.
        seeds: how many to repeat everything with.
        seed: the first.
        steps: of training; 600 if not given, 300 of noisy and hard.
        noise: walls of random colours.
        start: row and column where walks start, from 0; anywhere if not given.
        red: row and column of the square that is drawn from; the first free cell if not given.
        to: draw and score distances to the red square, as the authors' code does.
        out: directory of the files; runs/distance if not given.
    """
    from etd.lab.mazes import studies

    options = studies.Options(maze, walks, length, discount, energy, loss, seeds, seed, steps, noise, start, red, to)
    for path in studies.run(study, options, out or Path("runs/distance")):
        print(f"Written: {path}")


def report(runs: tyro.conf.Positional[tuple[Path, ...]], out: _Path = None) -> None:
    """One self-contained page over one or more runs, and pictures of their learning curves.

    For example:

        etd report runs/DoorKey-8x8-v0-etd runs/DoorKey-8x8-v0-none --out compare.html
        etd report results/bonuses/*/* --out bonuses.html

    Args:
        runs: the runs' directories; methods that share tasks are compared.
        out: the page; FIRST_RUN/report.html if not given. PAGE-curves.png and .svg lie beside it.
    """
    from etd.lab.report import write as pages

    if not runs:
        raise UserError("Name at least one run, as in `etd report runs/DoorKey-8x8-v0-etd`.")
    page = pages.write(list(runs), out or runs[0] / "report.html")
    print(f"Page:     {page}\nPictures: {', '.join(map(str, pages.pictures(page)))}")


def check(bonus: str = "etd", env: str = "MiniGrid-DoorKey-8x8-v0", seed: _Number = None, set_: _Set = ()) -> None:
    """Does a bonus behave in an environment? A short random run, and plain words; exit status 1 if something is wrong.

    For example:

        etd check --bonus rnd
        etd check --bonus "etd + 0.5*rnd" --env MiniGrid-MultiRoom-N6-v0

    Args:
        bonus: a name from `etd list bonuses`, or a sum or product such as "etd + 0.5*rnd".
        env: an id from `etd list environments`.
        seed: of levels, actions and weights.
        set_: override fields, as in `etd train`.
    """
    from etd.lab.check.bonus import examine
    from etd.lab.runs.config import override
    from etd.train import presets

    experiment = presets.choose(env, bonus)
    for assignment in (*set_, *([f"seed={seed}"] if seed is not None else [])):
        experiment = override(experiment, assignment)
    console = Console(highlight=False)
    with console.status("compiling and playing; about a minute on a CPU"):
        findings = examine(experiment)
    console.print(f"[bold]{bonus}[/bold] in {env}:")
    for finding in findings:
        console.print(f"  {'[green]ok[/green]   ' if finding.good else '[red]wrong[/red]'}  {finding.words}")
    if not all(finding.good for finding in findings):
        sys.exit(1)


def bench(
    what: tyro.conf.Positional[Literal["training", "bonus", "env", "host", "parity"]] = "training",
    env: _Env = None,
    bonus: str = "etd",
    seeds: int = 1,
    repeats: int = 3,
    steps: int = 1_000_000,
    out: _Path = None,
    set_: _Set = (),
) -> None:
    """Speed of training, of the bonuses or of an environment here, or MiniGrid against Farama's step by step.

    For example:

        etd bench
        etd bench --seeds 32 --set precision=tensorfloat32
        etd bench bonus --env MiniGrid-ObstructedMaze-Full-v1
        etd bench env --env MiniGrid-ObstructedMaze-Full-v1
        etd bench host --env Crafter-v0 --bonus none
        etd bench parity --steps 1_000_000

    Args:
        what: training: compile time, steps/s, the time's parts; bonus: every bonus beside plain PPO; env: steps/s at
            many batch sizes; host: steps/s alone, in a pool and in training; parity: mismatches.
        env: an id from `etd list environments`, MiniGrid-DoorKey-8x8-v0 if not given; host takes one of every suite
            that is installed, parity all levels.
        bonus: (training, host) a name from `etd list bonuses`.
        seeds: (training, bonus) how many agents to train together.
        repeats: (training, bonus, host) iterations to time; the median counts, of host the sum.
        steps: (parity) how many steps to compare.
        out: where the numbers go, as JSON; bench-WHAT.json if not given. A plot of env lies beside it.
        set_: (training, host) override fields, as in `etd train`.
    """
    from etd.bonuses import BONUSES
    from etd.lab.bench import host as hostbench
    from etd.lab.bench import training as bench

    out, level = out or Path(f"bench-{what}.json"), env or "MiniGrid-DoorKey-8x8-v0"
    if what == "parity":
        result = bench.parity(steps)
    elif what == "host":
        result = hostbench.run([env] if env else hostbench.installed(), bonus, repeats, set_)
    elif what == "bonus":
        result = bench.bonuses(level, [name for name in BONUSES if name != "mixture"], seeds, repeats)
    elif what == "env":
        result = bench.environment(level, out.with_suffix(".png"))
    else:
        result = _bench_training(level, bonus, seeds, repeats, set_)
    out.write_text(json.dumps(result, indent=2) + "\n")
    print(f"Written to {out}")
    if what == "parity" and result["mismatches"]:
        sys.exit(1)


def _bench_training(env: str, bonus: str, seeds: int, repeats: int, set_: tuple[str, ...]) -> dict[str, Any]:
    from etd.lab.bench import training as bench
    from etd.lab.runs.config import check, override
    from etd.train import presets

    experiment = replace(presets.choose(env, bonus), seeds=seeds)
    for assignment in set_:
        experiment = override(experiment, assignment)
    console = Console(highlight=False)
    with console.status("compiling and timing; a few minutes on a CPU"):
        result = bench.training(check(experiment), repeats)
    console.print(bench.table(result))
    return result


COMMANDS: dict[str, Any] = {
    "list": list_,
    "show": show,
    "train": train,
    "resume": resume,
    "evaluate": evaluate,
    "watch": watch,
    "distance": distance,
    "report": report,
    "compare": compare,
    "reproduce": reproduce,
    "check": check,
    "bench": bench,
}


def main(args: list[str] | None = None) -> None:
    """Run a command; a user's mistake becomes a sentence and exit status 2."""
    try:
        tyro.extras.subcommand_cli_from_dict(
            COMMANDS, prog="etd", description="Exploration by temporal distance.", args=args, sort_subcommands=False
        )
    except UserError as error:
        print(f"etd: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
