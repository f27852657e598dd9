"""``etd watch``, ``report`` and ``distance``: films, pages, pictures."""

from __future__ import annotations

from pathlib import Path

import tyro

from etd.cli.options import Flag, Import, Name, Number, OptionalPath, Position
from etd.core.errors import UserError


def watch(
    run: tyro.conf.Positional[Path],
    out: OptionalPath = None,
    seed: Number = None,
    episodes: int = 3,
    greedy: Flag = False,
    distance: Flag = False,
    import_: Import = (),
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
        import_: modules of your own that the run uses.
    """
    from etd.core import plugins
    from etd.lab.film import watch

    plugins.trust(import_)
    out = out or run / ("distance.gif" if distance else "episode.gif")
    print(f"Filmed: {watch.film(run, out, seed, episodes, greedy, distance)}")


def report(runs: tyro.conf.Positional[tuple[Path, ...]], out: OptionalPath = None, import_: Import = ()) -> None:
    """One self-contained page over one or more runs, and pictures of their learning curves.

    For example:

        etd report runs/DoorKey-8x8-v0-etd runs/DoorKey-8x8-v0-none --out compare.html
        etd report results/bonuses/*/* --out bonuses.html

    Args:
        runs: the runs' directories; methods that share tasks are compared.
        out: the page; FIRST_RUN/report.html if not given. PAGE-curves.png and .svg lie beside it.
        import_: modules of your own that the runs use; a report needs none of them.
    """
    from etd.core import plugins
    from etd.lab.report import write as pages

    plugins.trust(import_)
    if not runs:
        raise UserError("Name at least one run, as in `etd report runs/DoorKey-8x8-v0-etd`.")
    page = pages.write(list(runs), out or runs[0] / "report.html")
    print(f"Page:     {page}\nPictures: {', '.join(map(str, pages.pictures(page)))}")


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
