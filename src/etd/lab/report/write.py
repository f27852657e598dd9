"""One self-contained HTML page about a set of runs: no network, no folder of images."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from etd.core import files
from etd.core.errors import UserError
from etd.envs.families import title
from etd.lab.report import comparison, page, plot, statistics
from etd.lab.report.page import Html
from etd.lab.report.statistics import SOLVED, Numbers
from etd.lab.report.statistics import numbers as numbers
from etd.lab.runs.command import command
from etd.lab.runs.store import Run, refuse_run_file
from etd.training.config import bonus_name

FILM = "episode.gif"
"""Where the command line puts a run's film, inside its directory."""
LISTED = 6
"""Up to this many seeds are listed one by one; beyond that, the median and the range are given."""
FEW = 6
"""Up to this many runs get a column in the first table, diagnostics and a film; beyond that, a row and a collapsed
section."""


class Judged(NamedTuple):
    """A claim of the paper, what the runs show, and the verdict."""

    words: str
    ours: str
    verdict: Literal["holds", "holds so far", "fails", "not run"]


def write(
    runs: list[Path], out: Path, claims: Sequence[Judged] = (), failures: Mapping[str, str] | None = None
) -> Path:
    """Write the page about ``runs``, with NAME-curves.png and .svg beside it; a directory ``out`` gets report.html.
    ``failures`` are the errors of failed runs, by name."""
    if not runs:
        raise UserError("There is no run to report on. Name at least one run directory.")
    opened = [Run.open(path) for path in runs]
    for agent in (run for run in opened if run.exported):
        raise UserError(f"{agent.path} is an exported agent, without metrics. Report on the run it came from.")
    with files.told(out):
        out = refuse_run_file(out / "report.html" if out.is_dir() else out)
    curves = plot.draw_curves(opened)
    for picture in pictures(out):
        plot.save(curves, picture)
    files.write(out, _page(opened, curves, claims, failures or {}))
    return out


def pictures(out: Path) -> list[Path]:
    """The files of the learning curves beside a page."""
    return [out.with_name(f"{out.stem}-curves.{kind}") for kind in ("png", "svg")]


# Text ------------------------------------------------------------------------------------------------------------


def spread(values: list[float], how: str) -> str:
    """Mean and standard deviation over seeds; seeds without a value are left out."""
    finite = [value for value in values if np.isfinite(value)]
    if not finite:
        return "too few episodes yet"
    mean = f"{np.mean(finite):{how}}"
    return mean if len(finite) == 1 else f"{mean} ± {np.std(finite, ddof=1):{how}}"


def each(values: list[int | None]) -> str:
    """Steps per seed."""
    reached = [value for value in values if value is not None]
    if not reached:
        return "not yet"
    if len(values) <= LISTED:
        return ", ".join("not yet" if value is None else f"{value:,}" for value in values)
    span = f"median {int(np.median(reached)):,} ({min(reached):,} to {max(reached):,})"
    return span if len(reached) == len(values) else f"{span}; {len(reached)} of {len(values)} seeds"


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def _headline(run: Run, result: Numbers) -> dict[str, str]:
    experiment, device = run.experiment, run.record.get("device", {})
    kind = str(device.get("kind", "unknown"))
    frozen = ", ".join(map(str, result.frozen))
    planned = experiment.iterations * experiment.steps_per_iteration
    ends = {}  # only what the run has
    if result.final_score is not None:
        ends["final score"] = spread(result.final_score, ".2f")
    elif result.final_success is not None:
        ends["final success"] = spread(result.final_success, ".1%")
    if result.solved_at is not None:
        ends[f"steps to return {SOLVED}"] = each(result.solved_at)
    if result.first_success is not None and result.final_score is None:
        ends["first success at step"] = each(result.first_success)
    return {
        "environment": plot.task(run),
        "bonus": bonus_name(experiment.bonus),
        "seeds": str(experiment.seeds) + (f" (frozen by a non-finite loss: {frozen})" if frozen else ""),
        "steps per seed": f"{result.steps:,}" + (f" of {planned:,}" if result.steps < planned else ""),
        "final return": spread(result.final_return, ".3f"),
        **ends,
        "wall time": _duration(result.wall),
        "throughput": f"{result.throughput:,.0f} steps/s" if np.isfinite(result.throughput) else "unknown",
        "device": f"{device['count']} x {kind}" if "count" in device else kind,
    }


# Page ------------------------------------------------------------------------------------------------------------


def _page(runs: list[Run], curves: Figure, claims: Sequence[Judged], failures: Mapping[str, str]) -> str:
    results, study = [numbers(run) for run in runs], statistics.gather(runs)
    names = [run.path.name or str(run.path) for run in runs]
    few = len(runs) <= FEW
    where = ", ".join(study.tasks) if len(study.tasks) <= 2 else f"{len(study.tasks)} tasks"
    title = f"etd: {names[0]}" if len(runs) == 1 else f"etd: {len(runs)} runs on {where}"
    headlines = [_headline(run, result) for run, result in zip(runs, results, strict=True)]
    caption = "Learning curves: mean return of the last 100 episodes against environment steps."
    parts = [
        _claims(claims) if claims else "",
        _failures(failures) if failures else "",
        _columns(names, headlines) if few else "",
        *(page.note(words) for run in runs if (words := run.flaws())),
        f"<h2>Learning curves</h2>\n{page.drawing(curves, caption)}",
        comparison.tables(study) if statistics.shared(study) else "",
        _unlocked(names, runs),
        "" if few else f"{_rows(plot.labels(runs), headlines)}\n<h2>How each run was made</h2>",
        *(_section(*row, few=few) for row in zip(runs, names, results, strict=True)),
    ]
    return page.document(title, "\n".join(part for part in parts if part), broad=not few)


_MEANS = "Means and standard deviations are over seeds, of each seed's last 100 episodes (scores: of all episodes)."


def _columns(names: list[str], headlines: list[dict[str, str]]) -> str:
    """One column per run, so that a single run fits on a phone."""
    labels = dict.fromkeys(label for line in headlines for label in line)
    rows = [[label, *(line.get(label, "") for line in headlines)] for label in labels]
    return page.table("Results", ["run", *names], rows) + page.note(_MEANS)


def _rows(names: list[str], headlines: list[dict[str, str]]) -> str:
    """One row per run."""
    ends = [label for label in ("final success", "final score") if any(label in line for line in headlines)]
    shown = ["seeds", "steps per seed", "final return", *ends, "wall time", "throughput", "device"]
    rows = [
        [name, title(line["environment"]), *(line.get(label, "") for label in shown)]
        for name, line in zip(names, headlines, strict=True)
    ]
    clock = "Wall time includes compilation; throughput is of all seeds together and excludes it."
    table = page.table("Runs", ["method", "task", *shown], rows, "dense")
    return f"<h2>Runs</h2>\n{table}{page.note(f'{_MEANS} {clock}')}"


def _unlocked(names: list[str], runs: list[Run]) -> str:
    """Crafter's score, and the share of all training episodes that unlocked each achievement; empty without any."""
    tables = [(name, run, run.metrics()) for name, run in zip(names, runs, strict=True)]
    shown = [row for row in tables if "score" in row[2]]
    if not shown:
        return ""
    if len(set(names)) < len(names):
        shown = [(f"{name}, {plot.task(run)}", run, table) for name, run, table in shown]
    rows = []
    for column in ["score", *(name for name in shown[0][2] if name.startswith("unlocked_"))]:
        ends = [statistics.final(plot.by_seed(run, column, table)) for _, run, table in shown]
        label = "score" if column == "score" else column.removeprefix("unlocked_").replace("_", " ")
        rows.append([label, *(spread(end.tolist(), ".2f" if column == "score" else ".1%") for end in ends)])
    table = page.table("Achievements", ["achievement", *(name for name, *_ in shown)], rows)
    how = "Share of all training episodes that unlocked each; the score is exp(mean ln(1 + 100 share)) - 1."
    return f"<h2>Achievements</h2>\n{table}{page.note(f'{how} Means and standard deviations are over seeds.')}"


def _claims(claims: Sequence[Judged]) -> str:
    rows = [
        [words, Html(f'<span class="{verdict.replace(" ", "-")}">{escape(verdict)}</span>'), ours]
        for words, ours, verdict in claims
    ]
    counts = ", ".join(f"{sum(c.verdict == v for c in claims)} {v}" for v in dict.fromkeys(c.verdict for c in claims))
    table = page.table("Claims", ["the paper says", "verdict", "here"], rows, "claims")
    return f"<h2>The paper's claims</h2>\n{table}{page.note(f'{counts}.')}"


def _failures(failures: Mapping[str, str]) -> str:
    """Runs that ended with an error; the rest of the page shows them as far as they got."""
    return "<h2>Failed runs</h2>\n" + "".join(
        page.details(name, page.code(words.strip())) for name, words in failures.items()
    )


def _section(run: Run, name: str, result: Numbers, few: bool) -> str:
    """How a run was made and, if there are few, its diagnostics and film."""
    shown = f"{name} ({plot.task(run)}, {bonus_name(run.experiment.bonus)})"
    film, caption = run.path / FILM, f"An episode of {shown}, with its bonus."
    versions = "".join(
        f'<tr><th scope="row">{escape(str(key))}</th><td>{escape(str(value))}</td></tr>\n'
        for key, value in run.record.get("versions", {}).items()
    )
    made = page.code(command(run.experiment, run.path, **run.asked))
    experiment = page.details("Experiment", page.code(json.dumps(run.record["experiment"], indent=2)))
    made += experiment + page.details("Versions", f"<table><tbody>\n{versions}</tbody></table>")
    if not few:
        return page.details(shown, made)
    shows = film.is_file() and not film.is_symlink()  # a link could lead to what is not for the page's readers
    moving = page.picture("gif", film.read_bytes(), caption) if shows else ""
    panel = page.drawing(plot.draw_panel(run), f"Diagnostics of {shown}.")
    return f"<section>\n<h2>{escape(name)}</h2>\n{moving}\n{panel}\n<h3>How it was made</h3>\n{made}</section>\n"
