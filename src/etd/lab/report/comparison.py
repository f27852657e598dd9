"""Tables that compare several methods on the same tasks, for the report page."""

from __future__ import annotations

from html import escape

import numpy as np

from etd.core.errors import UserError
from etd.envs.families import title
from etd.lab.report import page, statistics
from etd.lab.report.page import Html
from etd.lab.report.statistics import SOLVED, Estimate, Reached, Results

MEASURES = {"final return": statistics.final, "mean return over training": statistics.average}
"""What methods are compared by."""


def tables(study: Results) -> str:
    """Steps to a return, probability of improvement, aggregate return; without rliable, a note on installing it
    replaces the last two."""
    try:
        over_tasks = f"{_improvement(study)}\n{_aggregate(study)}"
    except UserError as error:
        over_tasks = f"<h2>Over all tasks</h2>\n<p>{escape(str(error))}.</p>"
    uneven = ", ".join(title(task) for task in study.tasks if statistics.uneven(study, task))
    warning = page.note(f"Methods were trained for different numbers of steps on {uneven}.") if uneven else ""
    counts = {int(np.isfinite(statistics.final(curve)).sum()) for curve in study.returns.values()} - {0}
    if len(counts) > 1:
        warning += page.note(
            f"Runs have from {min(counts)} to {max(counts)} seeds with finished episodes. Statistics over tasks use "
            "equally many seeds of a method on every task: as many as it has on the task with the fewest."
        )
    return f"{_steps(study)}\n{over_tasks}\n{warning}"


def _steps(study: Results) -> str:
    rows = []
    for task in study.tasks:
        level = statistics.threshold(study, task)
        tried = [name for name in study.methods if (task, name) in study.returns]
        found = {
            name: statistics.reached(study.returns[task, name], np.inf if level is None else level) for name in tried
        }
        best = min(one.median for one in found.values())
        cells = [_reached(found[name], best) if name in found else "" for name in study.methods]
        rows.append([title(task), "none" if level is None else f"{round(level, 2):g}", *cells])
    words = (
        "Median over seeds, and how many seeds reached the return; a dash if half of them or more did not. The return "
        f"is {SOLVED}, or 90 % of the best final return if no seed reaches {SOLVED} or returns exceed 1. Steps are "
        f"those of the first logged row at or above it; rows are up to {short(statistics.spacing(study))} steps apart."
    )
    head = ["task", "return", *study.methods]
    return f"<h2>Steps to a return</h2>\n{page.table('Steps to a return', head, rows, 'dense')}{page.note(words)}"


def _reached(found: Reached, best: float) -> Html:
    steps = short(found.median) if np.isfinite(found.median) else "-"
    steps = f"<strong>{steps}</strong>" if found.median == best < np.inf else steps
    return Html(f"{steps}<small>{found.reached} of {found.seeds}</small>")


def short(steps: float) -> str:
    """Steps to about three digits."""
    if steps < 10_000:
        return f"{steps:,.0f}"
    return f"{steps / 1e3:.0f} k" if steps < 999_500 else f"{steps / 1e6:.2f} M"


def _improvement(study: Results) -> str:
    ours, *others = study.methods
    rows = []
    for name in others:
        pairs = [[statistics.scores(study, who, measure) for who in (ours, name)] for measure in MEASURES.values()]
        rows.append((name, [statistics.improvement(*pair) for pair in pairs]))
    title = f"Probability of improvement of {ours}"
    words = (
        f"The probability that a seed of {ours} beats a seed of the other method on the same task, with ties counted "
        "half: the mean over the tasks both were trained on, and its 95 % stratified-bootstrap interval (rliable). "
        f"Above 0.5 favours {ours}. Where both solve a task, their final returns differ little; the mean return over "
        "training shows which learned sooner."
    )
    table = _estimates(title, "over", rows, len(study.tasks), "no common task")
    return f"<h2>{escape(title)}</h2>\n{table}{page.note(words)}"


def _aggregate(study: Results) -> str:
    rows = [
        (name, [statistics.iqm(statistics.scores(study, name, measure)) for measure in MEASURES.values()])
        for name in study.methods
    ]
    words = (
        "Interquartile mean over all tasks and seeds, or the mean of fewer than four, and its 95 % "
        "stratified-bootstrap interval (rliable). Only methods trained on the same tasks are comparable."
    )
    table = _estimates("Return over all tasks", "method", rows, len(study.tasks), "too few episodes yet")
    return f"<h2>Return over all tasks</h2>\n{table}{page.note(words)}"


def _estimates(title: str, head: str, rows: list[tuple[str, list[Estimate | None]]], tasks: int, missing: str) -> str:
    """Per row a name and an estimate by each measure, with a bar if all are between 0 and 1."""
    values = np.array([one[:3] for _, found in rows for one in found if one]).reshape(-1, 3)
    drawn = bool(((values >= 0) & (values <= 1) | np.isnan(values)).all())
    cells = []
    for name, found in rows:
        count = next((f"{one.tasks} of {tasks}" for one in found if one), f"0 of {tasks}")
        cells.append([name, *(_estimate(one, drawn) if one else missing for one in found), count])
    return page.table(title, [head, *MEASURES, "tasks"], cells, "dense")


def _estimate(one: Estimate, drawn: bool) -> Html:
    interval = f"({one.low:.2f} to {one.high:.2f})" if np.isfinite(one.low) else "(one seed)"
    return Html(f"{one.value:.2f} {interval}{page.bar(*one[:3]) if drawn else ''}")
