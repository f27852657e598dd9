"""``etd watch``, ``report`` and ``distance``: films, HTML pages, pictures."""

from __future__ import annotations

import os
from pathlib import Path

import tyro

from etd.cli.options import Flag, Import, Name, Number, OptionalPath, Position
from etd.core.errors import UserError
from etd.core.words import say


def watch(
    run: tyro.conf.Positional[Path],
    out: OptionalPath = None,
    seed: Number = None,
    episodes: int = 3,
    greedy: Flag = False,
    distance: Flag = False,
    live: Flag = False,
    port: Number = None,
    import_: Import = (),
) -> None:
    """Film an episode with the bonus plotted beside it, as GIF or MP4; or follow a training as it runs.

    For example:

        etd watch runs/DoorKey-8x8-v0-etd
        etd watch --distance runs/DoorKey-8x8-v0-etd
        etd watch --live runs/DoorKey-8x8-v0-etd

    Args:
        run: the run's directory, or that of an exported agent.
        out: the film; RUN/episode.gif if omitted. A name ending in .mp4 makes an MP4.
        seed: the seed whose policy is filmed; if omitted, the one with the highest final return.
        episodes: how many to play; the first solved one is filmed.
        greedy: take the most likely action instead of sampling.
        distance: also draw the learned distance from the agent to every reachable cell (bonus etd).
        live: instead of a film, a page for the browser that follows the training; only this machine can open it.
        port: the port of that page; the first free one from 8383 on if omitted.
        import_: your own modules that the run uses.
    """
    if live:
        if out is not None or episodes != 3 or greedy or distance:
            raise UserError("--live films nothing. Leave out --out, --episodes, --greedy and --distance.")
        os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before JAX is imported: the training has the GPU
    elif port is not None:
        raise UserError("--port is for --live. Leave it out.")
    from etd.core import plugins
    from etd.lab.film import watch
    from etd.lab.live.serve import serve

    plugins.trust(import_)
    if live:
        serve(run, port, seed)
    else:
        out = out or run / ("distance.gif" if distance else "episode.gif")
        say(f"Filmed: {watch.film(run, out, seed, episodes, greedy, distance)}")


def report(runs: tyro.conf.Positional[tuple[Path, ...]], out: OptionalPath = None, import_: Import = ()) -> None:
    """Write a self-contained HTML page about one or more runs, with plots of their learning curves.

    For example:

        etd report runs/DoorKey-8x8-v0-etd runs/DoorKey-8x8-v0-none --out compare.html
        etd report results/bonuses/*/* --out bonuses.html

    Args:
        runs: the runs' directories; methods that share tasks are compared.
        out: the page; FIRST_RUN/report.html if omitted. PAGE-curves.png and .svg are saved next to it.
        import_: your own modules that the runs use; not required for a report.
    """
    from etd.core import plugins
    from etd.lab.report import write as pages

    plugins.trust(import_)
    if not runs:
        raise UserError("Name at least one run, as in `etd report runs/DoorKey-8x8-v0-etd`.")
    page = pages.write(list(runs), out or runs[0] / "report.html")
    say(f"Page:     {page}\nPictures: {', '.join(map(str, pages.pictures(page)))}")


def distance(
    study: tyro.conf.Positional[str] = "spiral",
    maze: Name = None,
    walks: int = 100,
    length: int = 50,
    discount: float = 0.99,
    energy: str = "mrn+potential",
    loss: str = "symmetric",
    seeds: int = 5,
    seed: int = 0,
    steps: Number = None,
    noise: Flag = False,
    start: Position = None,
    red: Position = None,
    to: Flag = False,
    out: OptionalPath = None,
) -> None:
    """Learn distances from random walks in a maze and compare them with the exact ones: pictures, numbers, a page.

    For example:

        etd distance
        etd distance noisy --seeds 3
        etd distance --maze my-maze.txt --walks 1000 --red 3 7

    Args:
        study: spiral; noisy (4 energies x 3 losses); hard; one-way; data (spiral with 100, 300, 1000 walks).
        maze: another maze: Spiral, Interlocked, Hard, HardSmall, OneWay, or a text file with a drawing.
        walks: number of random walks; ignored by the data study.
        length: steps per walk.
        discount: discount of the futures and of the exact distance.
        energy: ETD's energy: cos, l2, mrn or mrn+potential.
        loss: ETD's loss: forward, backward or symmetric.
        seeds: number of seeds.
        seed: the first seed.
        steps: training steps; if omitted, 600, or 300 for noisy and hard.
        noise: walls of random colours.
        start: row and column where walks start, from 0; anywhere if omitted.
        red: row and column of the red square, from which distances are drawn; the first free cell if omitted.
        to: draw and score distances to the red square instead, as in the authors' code.
        out: directory of the files, named after the study or after --maze; runs/distance if omitted.
    """
    from etd.lab.mazes import studies

    options = studies.Options(maze, walks, length, discount, energy, loss, seeds, seed, steps, noise, start, red, to)
    for path in studies.run(study, options, out or Path("runs/distance")):
        say(f"Written: {path}")
