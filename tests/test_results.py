"""The numbers of README.md, docs/ and the pages under results/, recomputed from the files that are kept beside them."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from etd.lab.paper import claims, figures, reproduce
from etd.lab.report import statistics
from etd.lab.report.curves import Curves, Floats, band, by_seed
from etd.lab.report.write import Judged
from etd.lab.runs.evaluate import evaluate
from etd.lab.runs.store import Run
from etd.training.migrate import FORMAT
from tests import long_run
from tests.lab.runs.test_agent import agrees

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
LONG_RUN = RESULTS / "exact/long-run.csv"
RECORDS = sorted(RESULTS.rglob("run.json"))
METHODS = {
    "ETD": "etd",
    "DEIR": "deir",
    "NovelD": "noveld",
    "E3B": "e3b",
    "EC": "ec",
    "NGU": "ngu",
    "RND": "rnd",
    "Count": "count",
    "PPO": "none",
    "mrn+potential": "mrn-potential",
}
"""Methods whose folder has another name."""
LABELS = ("level", "method", "run")
"""Columns that say which run a row is about."""
GOALS = dict(figures.TASKS.values())
"""Steps by environment. A run that stops short of them says so in its row."""


# Tables ----------------------------------------------------------------------------------------------------------


class Table(NamedTuple):
    """A table of a page: rows by column."""

    columns: list[str]
    rows: list[dict[str, str]]


def tables(page: Path) -> Iterator[Table]:
    lines = page.read_text().splitlines()
    for k, line in enumerate(lines):
        if not re.fullmatch(r"\|(-+\|)+", line):
            continue
        columns, rows = _cells(lines[k - 1]), []
        for row in lines[k + 1 :]:
            if not row.startswith("|"):
                break
            assert len(_cells(row)) == len(columns), row
            rows.append(dict(zip(columns, _cells(row), strict=True)))
        yield Table(columns, rows)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def find(page: Path, *columns: str) -> list[dict[str, str]]:
    """The rows of the page's one table with these columns."""
    (table,) = [table for table in tables(page) if table.columns == list(columns)]
    return table.rows


# Columns ---------------------------------------------------------------------------------------------------------


@cache
def curve(run: Path, metric: str = "return") -> Curves:
    return by_seed(Run.open(run), metric)


def listed(values: Floats) -> str:
    """One number per seed; returns of tens and hundreds without decimals."""
    decimals = 0 if np.abs(values).max() > 10 else 2
    return ", ".join(f"{value:.{decimals}f}" for value in values)


def steps_to(run: Path, level: float, unit: float = 1e6) -> str:
    """One number per seed, "-" where it is not reached, and a single "-" where no seed gets there."""
    reached = statistics.first(curve(run), level) / unit
    digits = ("-" if np.isinf(x) else f"{x:.{0 if unit < 1e6 else 2 if x < 0.95 else 1}f}" for x in reached)
    return "-" if np.isinf(reached).all() else ", ".join(digits)


def over_training(run: Path) -> Floats:
    return statistics.average(curve(run))


def success(run: Path) -> str:
    """Over seeds and the last tenth of what is kept."""
    values = curve(run, "success").values
    return f"{np.nanmean(values[:, -(values.shape[1] // 10) :]):.1%}".replace("%", " %")


def rounded(value: float) -> str:
    """A mean over seeds; of returns of tens and hundreds without decimals."""
    return f"{value:.{0 if abs(value) > 10 else 2}f}"


def spread(values: Floats) -> str:
    return f"{values.mean():.2f} ± {values.std(ddof=1):.2f}" if len(values) > 1 else f"{values[0]:.2f}"


def eased(run: Path) -> str:
    """MultiRoom-N6 is solved by a return of 0.65, so less is waited for."""
    return steps_to(run, 0.5 if "MultiRoom" in Run.open(run).experiment.env.id else 0.8)


COLUMNS: dict[str, Callable[[Path], str]] = {
    "steps to a return of 0.8, M per seed": lambda run: steps_to(run, 0.8),
    "steps to a return of 0.8 (MultiRoom-N6: 0.5), M per seed": eased,
    "steps to a return of 0.9, k per seed": lambda run: steps_to(run, 0.9, 1e3),
    "steps to a return of 50, k per seed": lambda run: steps_to(run, 50, 1e3),
    "steps to a return of 200, k per seed": lambda run: steps_to(run, 200, 1e3),
    "highest return, per seed": lambda run: listed(np.nanmax(curve(run).values, 1)),
    "final return, per seed": lambda run: listed(statistics.final(curve(run))),
    "final return, mean": lambda run: f"{statistics.final(curve(run)).mean():.2f}",
    "return over training, per seed": lambda run: listed(over_training(run)),
    "return over training, IQM": lambda run: rounded(statistics.middle(over_training(run))),
    "return over training, mean": lambda run: rounded(over_training(run).mean()),
    "success at the end": success,
    "score, per seed": lambda run: listed(statistics.final(curve(run, "score"))),
    "score, mean ± standard deviation": lambda run: spread(statistics.final(curve(run, "score"))),
    "wall time": lambda run: f"{np.nanmax(curve(run, 'wall').values):.0f} s",
    "trained, M steps": lambda run: f"{curve(run).steps[-1] / 1e6:.2f}",
    "`mix.extrinsic`": lambda run: f"{Run.open(run).experiment.mix.extrinsic:g}",
}
"""What a column of this name holds for a run."""


def located(page: Path, table: Table) -> Iterator[tuple[Path, dict[str, str]]]:
    """Each row's run: PAGE/LEVEL/METHOD, the level standing once for all its rows, PAGE/RUN, or a link's target."""
    level = ""
    for row in table.rows:
        label = [row[name] for name in LABELS if row.get(name)][-1]
        name, _, short = label.partition(", ")
        if link := re.search(r"\]\((.*)\)", " ".join(row.get(part, "") for part in LABELS)):
            run = (page.parent / link[1]).resolve()
        else:
            name = METHODS.get(name, name.strip("`"))
            level = row.get("level") or level
            run = page.parent / level / name
        yield run, row
        experiment, last = Run.open(run).experiment, curve(run).steps[-1]
        stopped = last < GOALS.get(experiment.env.id, experiment.steps)
        assert short == (f"{last / 1e6:.2f} M" if stopped else ""), f"{label} ends at {last:,.0f} steps"


PAGES = [page for page in sorted(RESULTS.glob("*/README.md")) if any(page.parent.rglob("run.json"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_tables_of_runs_are_what_the_kept_metrics_say(page: Path) -> None:
    shown = set()
    for table in tables(page):
        known = [column for column in table.columns if column in COLUMNS]
        if not known:
            continue
        assert set(table.columns) - set(known) <= {*LABELS, "change"}, "a column that nothing recomputes"
        for run, row in located(page, table):
            shown.add(run)
            assert {name: row[name] for name in known} == {name: COLUMNS[name](run) for name in known}, run
    assert {record.parent for record in RECORDS if record.is_relative_to(page.parent)} <= shown, "a run is not shown"


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: str(record.parent.relative_to(RESULTS)))
def test_kept_runs_open_in_todays_format(record: Path) -> None:
    run = Run.open(record.parent)
    assert run.kept
    assert json.loads(record.read_text()) == run.record
    assert run.record["format"] == FORMAT
    assert run.require().seeds == len(curve(record.parent).seeds)


# Claims ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def judged() -> dict[str, list[Judged]]:
    """What the paper says of each figure, by what is kept of it."""
    found = {}
    for figure in claims.CLAIMS:
        jobs = reproduce.plan(figure, RESULTS / figure).jobs
        runs = {(job.entry.task, job.entry.method): Run.open(job.path) for job in jobs if job.done}
        found[figure] = claims.judge(figure, runs)
    return found


def test_the_claims_are_judged_by_the_kept_runs(judged: dict[str, list[Judged]]) -> None:
    rows = find(RESULTS / "README.md", "figure", "the paper says", "verdict", "here")
    said = [(row["figure"], row["the paper says"], row["verdict"], row["here"]) for row in rows]
    assert said == [
        (f"[{figure}]({figure}/README.md)", one.words, one.verdict, one.ours)
        for figure, several in judged.items()
        for one in several
    ]
    (example,) = re.findall(r'"(.* against .*)" compares average returns', _text("results/README.md"))
    assert example in next(one.ours for one in judged["minigrid"] if "on all eight levels" in one.words)


@pytest.mark.parametrize("page", ["README.md", "docs/reproduce.md"])
def test_other_pages_sum_up_these_claims(page: str, judged: dict[str, list[Judged]]) -> None:
    """The verdict, and numbers of the claim's judgement in its order."""
    every = {one.words: one for several in judged.values() for one in several}
    rows = find(ROOT / page, "the paper says", "verdict", "here")
    left = set(every)
    for row in rows:
        claim = every[row["the paper says"]]
        left.remove(claim.words)
        assert row["verdict"] == claim.verdict, claim.words
        judgement = iter(_numbers(claim.ours))
        assert all(number in judgement for number in _numbers(row["here"])), claim  # each after the one before
        assert _numbers(row["here"]), claim
    if page != "README.md":  # which has some of them
        assert left == {one.words for one in judged["bonuses"]}  # those are parts of the main figure's


def test_the_readme_counts_the_claims(judged: dict[str, list[Judged]]) -> None:
    verdicts = Counter(one.verdict for several in judged.values() for one in several)
    held, so_far, failed = (verdicts[one] for one in ("holds", "holds so far", "fails"))
    verb = "holds" if so_far == 1 else "hold"
    words = f"Of {verdicts.total()} claims of the paper, {held} hold, {so_far} {verb} so far and {failed} fail here."
    assert words in _text("README.md")


def _numbers(text: str) -> list[str]:
    """In their order, those in names left out."""
    for task in sorted(figures.TASKS, key=len, reverse=True):
        text = text.replace(task, "")
    return re.findall(r"(?<![\w.])\d+(?:\.\d+)?", text)


# Words about runs ------------------------------------------------------------------------------------------------


def chance(run: str, other: str) -> str:
    """That a seed of one run is ahead of one of the other by its return over training."""
    ours, theirs = (over_training(RESULTS / path)[:, None] for path in (run, other))
    return f"{statistics.better(ours, theirs):.2f}"


def p_value(ours: Floats, theirs: Floats) -> str:
    p = mannwhitneyu(ours, theirs, method="exact").pvalue
    return f"{p:.3f}" if p < 0.01 else f"{p:.2f}"


def differ(run: str, other: str) -> str:
    """The p of the return over training."""
    return p_value(*(over_training(RESULTS / path) for path in (run, other)))


def quarters(run: str) -> list[str]:
    """Interquartile means over seeds of the mean return in each quarter of the training."""
    steps, values = curve(RESULTS / run).steps, curve(RESULTS / run).values
    part = np.ceil(4 * steps / steps[-1])
    return [f"{statistics.middle(np.nanmean(values[:, part == k], 1)):.2f}" for k in (1, 2, 3, 4)]


def test_the_mazes_page_says_in_words_what_was_kept() -> None:
    page, mazes = _text("results/maze3d/README.md"), [f"maze3d/Maze3D-S{size}" for size in (3, 4, 5)]
    first, second, third = (chance(f"{maze}/etd", f"{maze}/deir") for maze in mazes)
    assert f"beats one of DEIR with probability {first}, {second} and {third}" in page
    first, second, third = (differ(f"{maze}/etd", f"{maze}/deir") for maze in mazes)
    assert f"(two-sided Mann-Whitney p = {first}, {second} and {third})" in page
    assert {chance(f"{maze}/etd", f"{maze}/noveld") for maze in mazes} == {"1.00"}
    (p,) = {differ(f"{maze}/etd", f"{maze}/noveld") for maze in mazes}
    assert f"Every seed of ETD beats every one of NovelD on each level (p = {p})" in page
    for maze in mazes:
        ours, *rivals = (statistics.middle(over_training(RESULTS / maze / name)) for name in ("etd", "deir", "noveld"))
        assert ours > max(rivals)  # "ETD is first on all three"
    for maze in mazes[1:]:
        assert (statistics.final(curve(RESULTS / maze / "none", "first_success")) == -1).all()  # "never finds the box"
    methods = [RESULTS / mazes[2] / name for name in ("etd", "deir", "noveld", "none")]
    final = max(statistics.final(curve(run)).max() for run in methods)
    highest = max(statistics.highest(curve(run)) for run in methods)
    assert f"ends above a return of {final:.2f} or is ever above {highest:.2f}." in page
    etd, deir, noveld = (quarters(f"{mazes[2]}/{name}")[2:] for name in ("etd", "deir", "noveld"))
    assert etd[0] == etd[1]
    rise = (
        f"stays at {etd[0]} for ETD and rises from {deir[0]} to {deir[1]} for DEIR and from {noveld[0]} to {noveld[1]}"
    )
    assert f"{rise} for NovelD" in page


def test_the_mazes_page_says_what_a_tenfold_reward_is_worth() -> None:
    page, once, ten = _text("results/maze3d/README.md"), "maze3d/Maze3D-S4", "maze3d/extrinsic-10/Maze3D-S4"
    words = [
        f"{chance(f'{ten}/{name}', f'{once}/{name}')} for {title} (p = {differ(f'{ten}/{name}', f'{once}/{name}')})"
        for name, title in (("deir", "DEIR"), ("noveld", "NovelD"))
    ]
    assert f"a seed with 10 beats one with 1 with probability {words[0]} and {words[1]}." in page
    deir, noveld = (differ(f"{once}/etd", f"{ten}/{name}") for name in ("deir", "noveld"))
    against = f"with probability {chance(f'{once}/etd', f'{ten}/deir')} (p = {deir})"
    assert f"a seed of ETD beats one of DEIR {against} and every one of NovelD (p = {noveld})." in page
    assert chance(f"{once}/etd", f"{ten}/noveld") == "1.00"
    for name in ("deir", "noveld"):
        one, other = (Run.open(RESULTS / place / name).experiment for place in (once, ten))
        assert replace(one, mix=replace(one.mix, extrinsic=10.0)) == other


def test_the_rivals_page_says_in_words_what_was_kept() -> None:
    page, home = _text("results/rivals/README.md"), "rivals/DoorKey-16x16"

    def against(version: str, preset: str) -> str:
        run, other = f"{home}/{version}", f"{home}/{preset}"
        return f"(probability {chance(run, other)}, p = {differ(run, other)})"

    def last(version: str) -> list[float]:
        return sorted(statistics.final(curve(RESULTS / home / version)))

    def median(version: str) -> str:
        return f"{np.median(statistics.first(curve(RESULTS / home / version), 0.8)) / 1e6:.1f} M"

    solved = min(statistics.first(curve(RESULTS / home / "e3b-gru"), 0.8)) / 1e6
    others = last("e3b-gru")[-2]
    assert f"after {solved:.1f} M of 3 M steps; the other four end at {others:.2f} or less." in page
    assert f"Over training it is no better than without {against('e3b-gru', 'e3b')}." in page
    assert [sum(value > 0.9 for value in last(name)) for name in ("ngu-gru", "ngu", "e3b-gru")] == [5, 4, 1]
    medians = f"is {median('ngu-gru')} steps instead of {median('ngu')} {against('ngu-gru', 'ngu')}"
    assert f"its median to a return of 0.8 {medians}" in page
    assert f"as with 200 {against('ec-capacity-2561', 'ec')}" in page
    assert [
        np.isfinite(statistics.first(curve(RESULTS / home / name), 0.8)).sum() for name in ("ec", "ec-capacity-2561")
    ] == [1, 1]
    best = curve(RESULTS / home / "ec-threshold-0.9").values[0]
    second, first = last("ec-threshold-0.9")[-2:]
    assert first == best[-1]
    ends = (
        f"one seed reaches 0.8 and ends there, after {np.nanmedian(best):.2f} for most of the training, and one ends at"
    )
    assert f"{first:.1f}" == "0.8"
    assert f"{ends} {second:.2f} {against('ec-threshold-0.9', 'ec')}." in page
    still = [RESULTS / home / name for name in ("ec-capacity-50", "ec-threshold-0.5")]
    assert max(statistics.highest(curve(run)) for run in still) < 0.01  # "no seed learns anything"
    states, pay = (
        [np.concatenate([curve(run, name).values[:, k] for run in still]) for k in (0, -1)]
        for name in ("states_per_episode", "bonus_mean")
    )
    seen = " and ".join(f"{values.min():.0f} to {values.max():.0f}" for values in states)
    paid = [f"{values.min():.2f} to {values.max():.2f}" for values in pay]
    assert f"see {seen.replace(' and ', ' states per episode at first and ')} at the end" in page
    assert f"a step pays {paid[0]} at first and {paid[1]} at the end" in page


def test_the_dmc_page_says_in_words_what_was_kept_of_cartpole() -> None:
    page, here, cpu = _text("results/dmc/README.md"), "dmc/Cartpole-swingup", "dmc/cpu/Cartpole-swingup"
    chances = [chance(f"{task}/etd", f"{task}/none") for task in (here, cpu)]
    ps = [differ(f"{task}/etd", f"{task}/none") for task in (here, cpu)]
    words = f"probability {chances[0]} on the H200 (p = {ps[0]}) and {chances[1]} on the CPU (p = {ps[1]})."
    assert words in page
    etd, none = (curve(RESULTS / here / name) for name in ("etd", "none"))
    as_long = none.steps <= etd.steps[-1]
    cut = Curves(none.seeds, none.steps[as_long], none.values[:, as_long])
    assert cut.steps[-1] == etd.steps[-1]
    values = statistics.average(cut)
    length = f"first {cut.steps[-1] / 1e6:.2f} M steps"
    assert f"{length} on the H200, as long as ETD's, its IQM is {statistics.middle(values):.0f} and its mean" in page
    assert f"and its mean {values.mean():.0f}." in page
    on_cpu = [statistics.final(curve(RESULTS / cpu / name)) for name in ("etd", "none")]
    on_gpu = [statistics.final(one) for one in (etd, cut)]
    ends = [[f"{statistics.middle(one):.0f}" for one in pair] for pair in (on_cpu, on_gpu)]
    assert f"find it again: after {etd.steps[-1] / 1e6:.2f} M steps the IQM of the return happens to be" in page
    words = f"be {ends[0][0]} for ETD and {ends[0][1]} for PPO on the CPU (p = {p_value(*on_cpu)})"
    assert f"{words}, {ends[1][0]} and {ends[1][1]} on the H200 (p = {p_value(*on_gpu)})." in page


def test_the_dmc_page_says_in_words_what_was_kept_of_acrobot() -> None:
    page, acrobot = _text("results/dmc/README.md"), "dmc/Acrobot-swingup"
    assert chance(f"{acrobot}/etd", f"{acrobot}/none") == "1.00"
    p = differ(f"{acrobot}/etd", f"{acrobot}/none")
    assert f"Every seed of ETD is ahead of every seed of PPO (p = {p})." in page
    etd, none = (curve(RESULTS / acrobot / name) for name in ("etd", "none"))
    assert f"{statistics.highest(etd):.2f} is the highest return of any seed" in page
    assert statistics.highest(etd) > statistics.highest(none)
    assert (etd.values[:, 0] == none.values[:, 0]).all()  # "what both begin with"
    begin = f"({statistics.middle(none.values[:, 0]):.2f} after {none.steps[0] / 1e3:.0f} k steps)"
    assert (
        f"PPO's {statistics.middle(statistics.average(none)):.2f} (IQM over training) is about what both begin" in page
    )
    assert begin in page
    parts = [", ".join(quarters(f"{acrobot}/{name}")[:3]) for name in ("etd", "none")]
    ends = [quarters(f"{acrobot}/{name}")[3] for name in ("etd", "none")]
    assert f"ETD's return is {parts[0]} and {ends[0]}, PPO's {parts[1]} and {ends[1]} (IQM over seeds)." in page


def test_the_dmc_page_says_in_words_what_was_kept_of_hopper() -> None:
    page, hopper = _text("results/dmc/README.md"), "dmc/Hopper-hop"
    assert chance(f"{hopper}/etd", f"{hopper}/none") == "1.00"
    etd, none = (curve(RESULTS / hopper / name) for name in ("etd", "none"))
    p = differ(f"{hopper}/etd", f"{hopper}/none")
    assert f"none of which is ever above a return of {statistics.highest(none):.2f} (p = {p})." in page
    parts = [quarters(f"{hopper}/{name}") for name in ("etd", "none")]
    first, second = (f"{', '.join(part[:3])} and {part[3]}" for part in parts)
    assert f"ETD's return is {first}, PPO's {second} (IQM over seeds)." in page
    final = statistics.final(etd)
    assert f"ETD's seed {final.argmax()} after" in page
    assert final.min() > 30


def test_the_dmc_page_says_what_the_entropy_coefficient_is_worth() -> None:
    page, without, hopper = _text("results/dmc/README.md"), "dmc/entropy-0/Hopper-hop", "dmc/Hopper-hop"

    def entropy(run: str) -> list[str]:
        return [f"{value:.1f}" for value in curve(RESULTS / run, "ppo_entropy").values[:, [0, -1]].mean(0)]

    ppo, etd = entropy(f"{hopper}/none"), entropy(f"{hopper}/etd")
    assert f"PPO's entropy rises from {ppo[0]} to {ppo[1]}, ETD's from {etd[0]} to {etd[1]} (means" in page
    assert f"With a coefficient of 0, PPO's falls to {entropy(f'{without}/none')[1]}, and" in page
    assert chance(f"{without}/etd", f"{without}/none") == "1.00"
    p = differ(f"{without}/etd", f"{without}/none")
    assert f"Every seed of ETD still beats every one of PPO (p = {p})" in page
    same = f"{chance(f'{without}/etd', f'{hopper}/etd')}, p = {differ(f'{without}/etd', f'{hopper}/etd')}"
    assert f"with probability {same}):" in page


def test_the_dmc_page_says_what_a_gap_is_worth() -> None:
    page, gap = _text("results/dmc/README.md"), "dmc/gap-25/Cartpole-swingup/etd"
    assert Run.open(RESULTS / gap).experiment.bonus.gap == 25
    chances, ps = (
        [measure(gap, f"dmc/{task}") for task in ("cpu/Cartpole-swingup/none", "cpu/Cartpole-swingup/etd")]
        + [measure(gap, f"dmc/Cartpole-swingup/{name}") for name in ("none", "etd")]
        for measure in (chance, differ)
    )
    assert (
        f"beats one of PPO with probability {chances[0]}, p = {ps[0]}) and of ETD there ({chances[1]}, p = {ps[1]})"
        in page
    )
    assert f"with probability {chances[2]} (p = {ps[2]}) and {chances[3]} (p = {ps[3]})." in page
    final = statistics.final(curve(RESULTS / gap))
    assert f"Every seed ends above a return of {final.min() // 10 * 10:.0f}." in page


def test_the_dmc_page_says_which_states_are_nearest() -> None:
    columns = ("the nearest is the previous state", "one of the last five")
    rows = find(
        RESULTS / "dmc/README.md",
        "agent",
        "seeds",
        *columns,
        "rank correlation of the bonus with the last step's length",
    )
    kept = {one["env"]: one for one in read("dmc/nearest.json")}
    for row, env in zip(
        rows, ("dmc:cartpole-swingup_sparse", "dmc:hopper-hop", "MiniGrid-DoorKey-8x8-v0"), strict=True
    ):
        seeds = kept[env]["seeds"]
        share, near, rank = (
            np.mean([one[name] for one in seeds]) for name in ("previous", "just before", "rank correlation")
        )
        expected = [str(len(seeds)), f"{share:.0%}".replace("%", " %"), f"{near:.0%}".replace("%", " %"), f"{rank:.2f}"]
        assert list(row.values())[1:] == expected
        if "M steps" in row["agent"]:
            assert f"{kept[env]['steps'] / 1e6:.2f} M steps" in row["agent"]


def test_the_metaworld_page_says_in_words_what_was_kept() -> None:
    page, etd, none = _text("results/metaworld/README.md"), "metaworld/Reach/etd", "metaworld/Reach/none"
    assert chance(none, etd) == "1.00"
    assert f"in every pair of seeds (p = {differ(none, etd)}, the least that three seeds can show" in page
    assert f"in up to {statistics.highest(curve(RESULTS / none)):.0%} of its".replace("%", " %") in page
    without = "metaworld/entropy-0/Reach/none"
    before, after = (curve(RESULTS / run, "ppo_entropy").values[:, [0, -1]].mean(0) for run in (none, without))
    final = statistics.final(curve(RESULTS / "metaworld/Button-press/none"))
    assert f"On Button-press two of PPO's three seeds end at {np.sort(final)[1]:.2f} or more" in page
    hammer = statistics.final(curve(RESULTS / "metaworld/Hammer/none"))
    assert f"on Hammer all three end at {hammer.min():.2f} or more." in page
    assert f"PPO's entropy rises from {before[0]:.1f} to {before[1]:.1f} (mean over seeds)." in page
    far = f"{curve(RESULTS / without).steps[-1] / 1e6:.2f} M steps"
    highest = f"its return is never above {statistics.highest(curve(RESULTS / without)):.2f}:"
    assert f"Without it PPO's falls to {after[1]:.1f} in {far}, but {highest}" in page


def test_the_halfcheetah_page_says_in_words_what_was_kept() -> None:
    page, here = _text("results/halfcheetah/README.md"), "halfcheetah/HalfCheetahVelSparse"
    etd, none = f"{here}/etd", f"{here}/none"
    assert f"with probability {chance(etd, none)} (p = {differ(etd, none)}, two-sided" in page
    for run in (etd, none):  # "every seed's last is its highest"
        values = curve(RESULTS / run).values
        assert (values[:, -1] == np.nanmax(values, 1)).all()
        assert f"the noise costs about {round(-values[:, 0].mean(), -1):.0f} per episode" in page
    begins, ends = ([curve(RESULTS / run, "ppo_entropy").values[:, k].mean() for run in (etd, none)] for k in (0, -1))
    assert f"{begins[0]:.1f}" == f"{begins[1]:.1f}"
    assert f"entropy falls from {begins[0]:.1f} to {ends[0]:.1f} with ETD and to {ends[1]:.1f} with PPO" in page
    kept = read("halfcheetah/evaluation.json")["rows"]
    rows = find(RESULTS / "halfcheetah/README.md", "method", "actions", "return, per seed")
    assert [row["return, per seed"] for row in rows] == [listed(np.array(row["return"])) for row in kept]
    assert f"up to {max(max(row['return']) for row in kept):.0f} of a possible 1,000" in page


# Single numbers --------------------------------------------------------------------------------------------------


def index() -> dict[str, str]:
    """Results by what they are of, from results/README.md."""
    rows = find(RESULTS / "README.md", "what", "result", "where, and the command")
    return {row["what"]: row["result"] for row in rows}


def read(path: str) -> dict:
    return json.loads((RESULTS / path).read_text())


def first(run: str, level: float) -> Floats:
    return statistics.first(curve(RESULTS / run), level) / 1e3


def between(values: Floats) -> str:
    return f"{values.min():.0f} k to {values.max():.0f} k"


def length(run: str) -> str:
    return f"{curve(RESULTS / run).steps[-1] / 1e6:.0f} M steps"


def test_the_index_quotes_the_kept_runs() -> None:
    plain = curve(RESULTS / "doorkey-8x8/none")
    ppo = statistics.final(plain)
    places = {"random": "random"} | {
        name: f"Craftax-Classic/{METHODS[name]}" for name in ("ETD", "DEIR", "PPO", "NovelD")
    }
    scores = {name: statistics.final(curve(RESULTS / "craftax" / place, "score")) for name, place in places.items()}
    craftax = ", ".join(f"{name} {scores[name].mean():.1f}" for name in ("ETD", "DEIR", "PPO", "NovelD", "random"))
    iqm = COLUMNS["return over training, IQM"]
    mazes = {
        name: ", ".join(iqm(RESULTS / f"maze3d/Maze3D-S{size}/{METHODS[name]}") for size in (3, 4, 5))
        for name in ("ETD", "DEIR", "NovelD", "PPO")
    }
    gap = over_training(RESULTS / "dmc/gap-25/Cartpole-swingup/etd")
    expected = {
        "DoorKey-8x8, ETD": f"five seeds: return 0.9 after {between(first('doorkey-8x8/etd', 0.9))} steps",
        "DoorKey-8x8, PPO": f"five seeds: final return {ppo.min():.2f} to {ppo.max():.2f} "
        f"after {plain.steps[-1] / 1e3:.0f} k steps",
        "every bonus on DoorKey-8x8 and 16x16": "a return of 0.9 on 16x16 "
        f"after {between(first('bonuses/DoorKey-16x16/etd', 0.9))} steps, but two seeds lose 8x8 again after 400 k; "
        "PPO, RND, ICM and E3B do not solve 16x16",
        "Craftax-Classic": f"from pixels, {length('craftax/Craftax-Classic/etd')}, mean over five seeds of Crafter's "
        f"score: {craftax} (",
        "E3B, NGU and EC in other versions": f"DoorKey-16x16, {length('rivals/DoorKey-16x16/ec')}, five seeds, IQM "
        f"(mean) of the return over training: E3B with a GRU {_version('e3b-gru')}, NGU with a GRU "
        f"{_version('ngu-gru')}, EC with room for 2,561 states {_version('ec-capacity-2561')} and for 50 "
        f"{_version('ec-capacity-50')}, with a threshold of 0.9 {_version('ec-threshold-0.9')} and of 0.5 "
        f"{_version('ec-threshold-0.5')}",
        "first-person mazes": f"{length('maze3d/Maze3D-S5/etd')}, five seeds, IQM of the return over training on S3, "
        f"S4, S5: {'; '.join(f'{name} {values}' for name, values in mazes.items())}. S5 is not learned",
        "dmc:cartpole-swingup_sparse": f"on a CPU for {length('dmc/cpu/Cartpole-swingup/etd')}, "
        f"mean over seeds {_both('cpu/Cartpole-swingup')}; "
        f"on an H200, stopped after {_ends('Cartpole-swingup')}, mean {_both('Cartpole-swingup')}; "
        f"ETD with a gap of 25, on a CPU, mean {gap.mean():.0f}, IQM {statistics.middle(gap):.0f}",
        "metaworld:reach": "return over training, mean over seeds, ETD "
        f"{rounded(over_training(RESULTS / 'metaworld/Reach/etd').mean())} and PPO "
        f"{rounded(over_training(RESULTS / 'metaworld/Reach/none').mean())}; neither learns it",
        "dmc:hopper-hop": f"{_ends('Hopper-hop').split(' and ')[0]} steps: every seed of ETD is ahead of PPO's; final "
        f"return, per seed, {COLUMNS['final return, per seed'](RESULTS / 'dmc/Hopper-hop/etd')} and at most "
        f"{statistics.final(curve(RESULTS / 'dmc/Hopper-hop/none')).max():.2f}; return over training, mean over seeds "
        f"{_both('Hopper-hop')}",
        "dmc:acrobot-swingup_sparse": f"stopped after {_ends('Acrobot-swingup')} steps: every seed of ETD is ahead of "
        "PPO's, but neither learns to swing up; return over training, of a possible 1,000: "
        f"mean over seeds {_both('Acrobot-swingup')}",
    }
    rows = index()
    assert [what for what, words in expected.items() if words not in rows[what]] == []


def _both(task: str) -> str:
    """ETD's and PPO's return over training."""
    etd, none = (over_training(RESULTS / "dmc" / task / method) for method in ("etd", "none"))
    middles = [rounded(statistics.middle(values)) for values in (etd, none)]
    return f"{rounded(etd.mean())} and {rounded(none.mean())}, IQM {middles[0]} and {middles[1]}"


def _ends(task: str) -> str:
    etd, none = (curve(RESULTS / "dmc" / task / method).steps[-1] / 1e6 for method in ("etd", "none"))
    return f"{etd:.2f} M and {none:.2f} M"


def _version(method: str) -> str:
    values = over_training(RESULTS / "rivals/DoorKey-16x16" / method)
    return f"{statistics.middle(values):.2f} ({values.mean():.2f})"


def test_the_indexes_words_are_true_of_the_kept_runs() -> None:
    """Those that have no number which would change with the runs."""
    early = curve(RESULTS / "bonuses/DoorKey-8x8/etd")
    solved = early.values[:, early.steps <= 400_000][:, -1] >= 0.9
    assert (solved & (statistics.final(early) < 0.5)).sum() == 2  # "two seeds lose 8x8 again after 400 k"
    folders = (RESULTS / "bonuses/DoorKey-16x16").iterdir()
    never = {run.name for run in folders if np.isinf(statistics.first(curve(run), 0.9)).all()}
    assert never == {"none", "rnd", "icm", "e3b"}  # "PPO, RND, ICM and E3B do not solve 16x16"
    for words, run, learned in (
        ("Two of PPO's five seeds learn ObstructedMaze-2Dlh", "minigrid/ObstructedMaze-2Dlh/none", 2),
        ("with a GRU one seed of E3B in five solves it and all of NGU's do", "rivals/DoorKey-16x16/e3b-gru", 1),
        ("with a GRU one seed of E3B in five solves it and all of NGU's do", "rivals/DoorKey-16x16/ngu-gru", 5),
        ("with other memories at most one seed of EC does", "rivals/DoorKey-16x16/ec-capacity-2561", 1),
    ):
        assert words in _text("results/README.md")
        assert (statistics.final(curve(RESULTS / run)) > 0.9).sum() == learned, run
    discriminator = over_training(RESULTS / "representation/DoorKey-16x16/discriminator")
    hidden = f"{statistics.middle(discriminator):.2f} on DoorKey-16x16 hides one failing seed of five"
    assert f"The discriminator's {hidden} (plain mean {discriminator.mean():.2f})" in _text("results/README.md")


def test_the_index_quotes_the_plugins_curves() -> None:
    small, large, recurrent = (
        ("DoorKey-8x8", "ppo-etd"),
        ("DoorKey-16x16", "ppo-etd-4"),
        ("DoorKey-8x8", "recurrent-ppo-etd"),
    )
    found = []
    for one, solved in ((small, 5), (large, 4), (recurrent, 5)):
        steps = plugin_first(*one) / 1e3
        assert np.isfinite(steps).sum() == solved
        found.append(between(steps[np.isfinite(steps)]))
    for level, method, steps in (
        ("DoorKey-8x8", "ppo", 300_000),
        ("DoorKey-8x8", "recurrent-ppo", 300_000),
        ("DoorKey-16x16", "ppo", 1_000_000),
    ):
        assert np.isinf(plugin_first(level, method)).all()
        assert all(steps <= counted[-1] < 1.02 * steps for counted, _ in plugin_curves(level, method))
    assert (
        f"a return of 0.8 on 8x8 after {found[0]} steps (five seeds), on 16x16, with 4 passes of the model, after "
        f"{found[1]} (four of five; one not in 1 M); in RecurrentPPO on 8x8 after {found[2]} (five seeds); without it "
        "never in 300 k and 1 M (five seeds each)"
    ) in index()["Stable-Baselines3's PPO on DoorKey"]


def test_the_index_quotes_the_kept_speeds() -> None:
    relative = read("speed/h200-bonus.json")["relative"]
    del relative["none"]
    dearest, cheapest = max(relative, key=relative.get), min(relative, key=relative.get)
    env = {(one["env"], one["what"], one["batch"]): one["steps_per_s"] for one in read("speed/h200-env.json")["speeds"]}
    here = {(one["what"], one["batch"]): one["steps_per_s"] / 1e3 for one in read("speed/cpu-env.json")["speeds"]}
    host = {one["env"]: one["training"] for one in read("speed/cpu-host.json")["environments"]}
    parity = read("parity.json")
    levels, most = ("MiniGrid-DoorKey-8x8-v0", "MiniGrid-ObstructedMaze-Full-v1"), max(batch for _, _, batch in env)
    on_gpu, on_maze = (env[level, "etd", most] / 1e6 for level in levels)
    expected = {
        "cost of a bonus": f"{relative[cheapest]:.2f} (Count) to {relative[dearest]:.2f} (NGU), "
        f"ETD {relative['etd']:.2f}",
        "training, one H200, one seed": f"{_long_run_rate():,.0f} steps/s in float32",
        "training, one H200, 32 seeds": f"{_rate('h200-training-32-seeds') / 1e3:.0f},000 steps/s in tensorfloat32",
        "training, two CPU cores, one seed": f"{_rate('cpu-training-1-seed'):,.0f} steps/s on an Intel Xeon, "
        f"{_rate('cpu-training-1-seed-epyc'):,.0f} on an AMD EPYC",
        "MiniGrid alone, one H200": f"{most:,} environments, levels generated on the way: "
        f"{on_gpu:.0f} M steps/s on DoorKey-8x8, {on_maze:.0f} M",
        "MiniGrid alone, two CPU cores": f"{here['etd', 16]:.0f} k steps/s at 16 environments, "
        f"{here['etd', 1024]:.0f} k at 1,024 (navix {here['navix', 16]:.0f} k and {here['navix', 1024]:.0f} k, "
        f"Farama's {here['farama', 1]:.1f} k)",
        "host environments, two CPU cores": f"Crafter {host['Crafter-v0']:.0f} steps/s, "
        f"MiniWorld {host['MiniWorld-MazeS3-v0']:.0f}, "
        f"DeepMind Control {host['dmc:acrobot-swingup_sparse']:,.0f}, "
        f"HalfCheetah {host['HalfCheetahVelSparse-v0']:,.0f}",
        "MiniGrid against Farama's": f"all {len(parity['by_level'])} levels: {parity['steps']:,} steps, "
        f"{parity['episodes']:,} episodes, {parity['mismatches']} mismatches",
    }
    assert (cheapest, dearest) == ("count", "ngu")
    rows = index()
    assert [what for what, words in expected.items() if words not in rows[what]] == []


def test_numbers_whose_files_were_not_kept_are_the_same_on_all_pages() -> None:
    """The authors' code, a speed of an earlier version, and a batch of trainings were measured once."""
    top, speed, doorkey = (_text(f"results/{page}README.md") for page in ("", "speed/", "doorkey-8x8/"))
    assert "The authors' code needs 106 k to 125 k steps for a return of 0.9" in doorkey
    assert "(the authors' code: 106 k to 125 k)" in top
    assert "820 steps/s on such a GPU with ETD, 2,290 without a bonus and 170 with ETD on the Xeon" in speed
    assert "in float32 (the authors' code: 820)" in top
    assert "(the authors' code on the Xeon: 170)" in top
    assert "| ETD, 32 seeds together | float32 | 229,373 |" in speed
    assert "229,000 in float32, all seeds together" in top
    assert "616 M steps in 22.5 minutes, compilation included" in _text("results/minigrid/README.md")
    assert f"one batch of 25 made {616_000 / (22.5 * 60):.0f},000 steps/s in all" in top
    assert "of 1.6 for random actions and 4.6 for PPO" in _text("results/craftax/README.md")
    assert "(original Crafter, published: PPO 4.6, random 1.6)" in top


def test_the_site_quotes_the_distance_lab() -> None:
    scores = json.loads((RESULTS / "distance/spiral.json").read_text())["results"][0]["scores"]
    etd, inverse, likelihood = (scores[name]["path spearman"]["mean"] for name in ("etd", "inverse", "ec"))
    rivals = f"that of inverse dynamics {inverse:.2f}, of EC's likelihood {likelihood:.2f}"
    assert f"is {etd:.2f} (mean over five seeds), {rivals}" in _text("docs/index.md")


def test_the_loss_of_folded_distances_is_what_was_measured() -> None:
    found: dict[str, dict[int, dict[str, float]]] = {}
    for row in json.loads((RESULTS / "distance/fold.json").read_text())["rows"]:
        found.setdefault(row["distance"], {})[row["seed"]] = row
    page, rows = RESULTS / "distance/README.md", {}
    for row in find(page, "distance", "Spearman", "loss"):
        rows[row["distance"].removesuffix(" (up to 25 from cell to cell)")] = row
    assert rows.keys() == found.keys()
    for name, seeds in found.items():
        low, high = (f"{extreme(row['spearman'] for row in seeds.values()):.3f}" for extreme in (min, max))
        assert rows[name]["Spearman"] == (low if low == high else f"{low} to {high}"), name
        loss = np.mean([row["loss"] - found["exact"][seed]["loss"] for seed, row in seeds.items()])
        assert rows[name]["loss"] == (f"{loss:+.4f}" if name != "exact" else "0"), name
    below = {row["spearman"]: found["exact"][seed]["loss"] - row["loss"] for seed, row in found["ETD"].items()}
    folded, *_, ordered, best = sorted(below)
    text = _text("results/distance/README.md")
    assert f"on each seed's own by {max(below.values()):.3f} to {min(below.values()):.3f}, and the seed" in text
    assert f"a Spearman of {folded:.3f}, is among the others with {below[folded]:.3f}" in text
    assert f"{below[ordered] - below[folded]:.4f} behind one that is well ordered ({ordered:.3f})" in text
    assert f"{below[folded] - below[best]:.4f} ahead of the best ({best:.3f})" in text
    assert max(row["error"] for seeds in found.values() for row in seeds.values()) < 0.002


def test_the_distances_of_longer_walks_are_those_kept() -> None:
    columns = ("walks", "steps of each", "training steps", "from the red square", "mean", "over all pairs, mean")
    rows = [[row[name].strip("*") for name in columns] for row in find(RESULTS / "distance/README.md", *columns)]
    expected = []
    for row in json.loads((RESULTS / "distance/longer.json").read_text()):
        here, everywhere = row["path spearman"], row["path spearman, all"]
        words = [
            f"{row['walks']}",
            f"{row['length']}",
            f"{row['steps']:,}",
            ", ".join(f"{score:.3f}" for score in here),
        ]
        expected.append([*words, f"{np.mean(here):.3f}", f"{np.mean(everywhere):.3f}"])
        assert row["walks"] * row["length"] == 15_000
    assert sorted(rows) == sorted(expected)


def test_the_precision_page_compares_the_same_steps() -> None:
    rows = iter(find(RESULTS / "precision/README.md", "level", "precision", "mean return, per seed", *INTERVAL))
    worst = 0.0
    for level, other in (("DoorKey-8x8", "bonuses"), ("DoorKey-16x16", "minigrid"), ("ObstructedMaze-1Q", "minigrid")):
        runs = [RESULTS / "precision" / level / "etd", RESULTS / other / level / "etd"]
        grid = np.linspace(0, min(curve(run).steps[-1] for run in runs), 51)[1:]
        centres, bounds = [], []
        for run in runs:
            steps, known = curve(run).steps, [(values, np.isfinite(values)) for values in curve(run).values]
            means = np.array([np.interp(grid, steps[there], values[there]).mean() for values, there in known])
            (low,), (high,) = band(means[:, None])
            row = next(rows)
            assert row["precision"] == Run.open(run).experiment.precision
            assert row["mean return, per seed"] == listed(means)
            assert row["interquartile mean"] == f"{statistics.middle(means):.3f}"
            assert row["95 %"] == f"{low:.2f} to {high:.2f}"
            centres.append(statistics.middle(means))
            bounds.append((low, high))
        assert max(low for low, _ in bounds) < min(high for _, high in bounds)
        worst = max(worst, abs(centres[0] - centres[1]))
    assert f"differ by no more than {worst:.3f}" in _text("results/precision/README.md")
    final = statistics.final(curve(RESULTS / "precision/DoorKey-16x16/etd"))
    assert f"ends at {final.min():.2f} after 1 M steps" in _text("results/precision/README.md")


INTERVAL = ("interquartile mean", "95 %")


def test_the_speed_page_says_what_was_counted() -> None:
    kept = json.loads((RESULTS / "speed/h200-kernels.json").read_text())
    keys = ("loop", "seeds", "precision")
    before, after = ({tuple(row[key] for key in keys): row for row in kept[name]} for name in ("before", "rows"))
    columns = ("kernels before", "after", "megabytes before", "after")
    (table,) = [table for table in tables(RESULTS / "speed/README.md") if table.columns == [*keys, *columns]]
    page, loop, shown = (RESULTS / "speed/README.md").read_text(), "", 0
    for row in table.rows:
        loop = row["loop"] or loop
        case = (loop, int(row["seeds"]), row["precision"])
        counts = [
            f"{one[case][key]:,.0f}" if key in one.get(case, {}) else ""
            for key in ("kernels", "megabytes")
            for one in (before, after)
        ]
        assert (
            f"| {row['seeds']} | {row['precision']} | {' | '.join(counts)} |".replace("|  |", "| |").replace(
                "|  |", "| |"
            )
            in page
        )
        shown += 1
    assert shown == 9
    turns = {"a step of acting": 512, "an update of the model": 128, "an update of the policy": 64}
    totals = [sum(one[loop, 1, "float32"]["kernels"] * n for loop, n in turns.items()) for one in (before, after)]
    assert f"{totals[0]:,} kernels before, {totals[1]:,} after" in _text("results/speed/README.md")
    moved = [after[f"an update of the {part}", 32, "bfloat16"]["megabytes"] for part in ("model", "policy")]
    assert f"take {(128 * moved[0] + 64 * moved[1]) / 4.3e6 * 1e3:.0f} ms in bfloat16" in _text(
        "results/speed/README.md"
    )


def test_the_readme_and_the_site_quote_the_speeds() -> None:
    authors, page = 820, _text("docs/speed.md")
    assert f"makes {authors} steps/s on such a GPU" in _text("results/speed/README.md")
    here = _long_run_rate()
    assert f"{int(here / authors)} times as fast as with the authors' code" in _text("README.md")
    assert f"H200, 1 seed, float32 | {here:,.0f} |" in page
    many = _rate("h200-training-32-seeds")
    half = json.loads((RESULTS / "speed/h200-training-32-seeds-bfloat16.json").read_text())
    assert f"32 seeds together make {many / 1e3:.0f},000" in page
    assert f"in tensorfloat32 and {half['steps_per_s'] / 1e3:.0f},000 in bfloat16" in page
    assert f"{half['steps_per_s'] / 1e3:.0f},000 in bfloat16" in _text("results/README.md")
    speeds = find(RESULTS / "speed/README.md", "what", "precision", "steps/s", "times the authors' code", "from")
    rows = {(row["what"], row["precision"]): row for row in speeds}
    for what, precision, rate, theirs in (
        ("ETD, 1 seed", "float32", here, authors),
        ("ETD, 32 seeds together", "tensorfloat32", many, authors),
        ("ETD, 32 seeds together", "bfloat16", half["steps_per_s"], authors),
        ("no bonus, 1 seed", "float32", _rate("h200-ppo-1-seed"), 2_290),
    ):
        row = rows[what, precision]
        assert (row["steps/s"], row["times the authors' code"]) == (f"{rate:,.0f}", f"{int(rate / theirs)}")
    cores = [f"{_rate(name):,.0f}" for name in ("cpu-training-1-seed", "cpu-training-1-seed-epyc")]
    assert f"{cores[0]} on an Intel Xeon, {cores[1]} on an AMD EPYC" in page
    relative = json.loads((RESULTS / "speed/h200-bonus.json").read_text())["relative"]
    costs = (
        f"takes {relative['etd']:.2f} times as long as plain PPO's on an H200, with Count {relative['count']:.2f}, with"
    )
    assert f"{costs} NGU, the most expensive, {relative['ngu']:.2f}" in page
    device = json.loads((RESULTS / "speed/h200-env.json").read_text())["speeds"]
    best = max(one["steps_per_s"] for one in device if one["what"] == "etd" and "DoorKey-8x8" in one["env"])
    assert f"{best / 1e6:.0f} M steps/s on DoorKey-8x8" in page
    alone = json.loads((RESULTS / "speed/cpu-env.json").read_text())["speeds"]
    found = {(one["what"], one["batch"]): one["steps_per_s"] / 1e3 for one in alone}
    fast, navix, farama = (found[one] for one in (("etd", 1024), ("navix", 1024), ("farama", 1)))
    assert f"1,024 environments make {fast:.0f} k, navix {navix:.0f} k, and Farama's own {farama:.1f} k" in page
    parity = json.loads((RESULTS / "parity.json").read_text())
    assert f"compared over {parity['steps']:,} steps without a mismatch" in page
    assert parity["mismatches"] == 0


def test_a_long_training_is_flat() -> None:
    table = long_run.read(LONG_RUN)
    assert long_run.judge(table)
    rows = find(RESULTS / "exact/README.md", "what", "mean", "growth over the last third")
    last = 2 * len(table["step"]) // 3
    for row, (name, watched) in zip(rows, long_run.COLUMNS.items(), strict=True):
        assert row["what"] == watched.title
        assert row["mean"] == f"{table[name][last:].mean():,.1f}"
        assert row["growth over the last third"] == f"{long_run.growth(table, name):+.3f}"


def test_the_speeds_of_training_on_a_cpu_are_the_kept_ones() -> None:
    kept = json.loads((RESULTS / "speed/cpu-training-before-after.json").read_text())["results"]
    columns = ("of them model epochs", "PPO epochs", "scoring", "share of a matrix product's rate")
    for row in find(RESULTS / "speed/README.md", "code", "steps/s, in turn", "seconds per iteration", *columns):
        runs = [one for one in kept if one["code"] == row["code"]]
        phases = [one["phases_s"] for one in runs]
        expected = [
            [f"{one['steps_per_s']:,.0f}" for one in runs],
            [f"{one['iteration_s']:.1f}" for one in runs],
            [f"{one['model epochs']:.1f}" for one in phases],
            [f"{one['PPO epochs']:.1f}" for one in phases],
            [f"{one['scoring']:.2f}" for one in phases],
            [f"{one['fraction_of_matmul']:.0%}".replace("%", " %") for one in runs],
        ]
        assert list(row.values())[1:] == [", ".join(values) for values in expected]
    seconds = ([one["iteration_s"] for one in kept if one["code"] == code] for code in ("before", "after"))
    ratios = [f"{before / after:.2f}" for before, after in zip(*seconds, strict=True)]
    assert f"In turn that is {ratios[0]}, {ratios[1]} and {ratios[2]} times" in _text("results/speed/README.md")
    rates = [one["steps_per_s"] for one in kept if one["code"] == "after"]
    for page in ("docs/speed.md", "results/README.md"):
        assert f"with today's code {min(rates):,.0f} to {max(rates):,.0f} on an EPYC with AVX-512" in _text(page)


def test_the_speeds_beside_navix_are_the_kept_ones() -> None:
    found: dict[tuple[str, str, str], list[float]] = {}
    for one in json.loads((RESULTS / "speed/cpu-navix.json").read_text())["speeds"]:
        level = re.sub(r"MiniGrid-(.*)-v0", r"\1", one["env"])
        found.setdefault((level, f"{one['batch']:,}", one["what"]), []).append(one["steps_per_s"])
    columns = ("level", "environments", "etd", "navix 4.0.0", "times (of the means)")
    rows = find(RESULTS / "speed/README.md", *columns)
    for row in rows:
        ours, theirs = (found.pop((row["level"], row["environments"], what)) for what in ("etd", "navix"))
        said = [", ".join(f"{rate / 1e3:,.0f} k" for rate in rates) for rates in (ours, theirs)]
        assert [row[name] for name in columns[2:]] == [*said, f"{np.mean(ours) / np.mean(theirs):.1f}"]
    assert not found


def _text(page: str) -> str:
    """In one line."""
    return " ".join((ROOT / page).read_text().split())


def _long_run_rate() -> float:
    """Steps per second of the long training, whose iterations are 8,192 steps."""
    return 8192 / (np.median(long_run.read(LONG_RUN)["step_time"]) / 1000)


def _rate(name: str) -> float:
    return json.loads((RESULTS / "speed" / f"{name}.json").read_text())["steps_per_s"]


def test_the_achievements_are_those_of_the_kept_episodes() -> None:
    columns = {"ETD": "etd", "DEIR": "deir", "NovelD": "noveld", "PPO": "none"}
    places = {name: RESULTS / "craftax/Craftax-Classic" / method for name, method in columns.items()}
    places["random"] = RESULTS / "craftax/random"
    rows = find(RESULTS / "craftax/README.md", "achievement", *places)
    for row in rows:
        metric = f"unlocked_{row['achievement'].replace(' ', '_')}"
        for name, place in places.items():
            percent = 100 * statistics.final(curve(place, metric)).mean()
            assert row[name] == ("0" if percent == 0 else "< 0.1" if percent < 0.05 else f"{percent:.1f}"), row
    assert len(rows) == 22


# The bonus in other trainers -------------------------------------------------------------------------------------


def plugin_curves(level: str, method: str) -> list[Floats]:
    """Of each seed, steps and returns."""
    files = sorted((RESULTS / "plugin" / level / method).glob("*.csv"), key=lambda file: int(file.stem))
    return [np.loadtxt(file, delimiter=",", skiprows=1)[:, :2].T for file in files]


def plugin_first(level: str, method: str) -> Floats:
    """Of each seed, the steps to a return of 0.8, once every environment must have finished an episode."""
    least = {"DoorKey-8x8": 640, "DoorKey-16x16": 2560}[level] * (64 if method.startswith("recurrent") else 16)
    there = [steps[(steps >= least) & (value >= 0.8)] for steps, value in plugin_curves(level, method)]
    return np.array([steps[0] if len(steps) else np.inf for steps in there])


def test_the_plugins_returns_are_those_of_the_kept_curves() -> None:
    page = RESULTS / "plugin/README.md"
    rows = find(page, "level", "method", "steps to a return of 0.8, k per seed", "return at the end, per seed")
    kept = sorted(str(file.parent.relative_to(page.parent)) for file in page.parent.glob("*/*/0.csv"))
    assert sorted(f"{row['level']}/{row['method']}" for row in rows) == kept
    for row in rows:
        curves = plugin_curves(row["level"], row["method"])
        steps = plugin_first(row["level"], row["method"]) / 1e3
        first = [f"{count:.0f}" if np.isfinite(count) else "-" for count in steps]
        assert row["steps to a return of 0.8, k per seed"] == (", ".join(first) if set(first) != {"-"} else "-")
        assert row["return at the end, per seed"] == ", ".join(f"{value[-1]:.2f}" for _, value in curves)


def test_the_plugins_cost_is_what_was_measured() -> None:
    found = json.loads((RESULTS / "plugin/cost.json").read_text())
    measured = {row["epochs"]: row for row in found["rows"]}
    rows = find(RESULTS / "plugin/README.md", "passes of the model", "steps/s", "scoring", "model's training")
    assert [row["passes of the model"] for row in rows] == ["no bonus", "8 (default)", "4", "2", "1"]
    for row in rows:
        one = measured[0 if row["passes of the model"] == "no bonus" else int(row["passes of the model"].split()[0])]
        parts = [one[part] for part in ("scoring_s", "model_s") if part in one]
        shares = [f"{seconds / one['rollout_s']:.0%}".replace("%", " %") for seconds in parts]
        assert row["steps/s"] == f"{one['steps_per_s']:,.0f}"
        assert [row["scoring"], row["model's training"]] == (shares or ["", ""])
    page = _text("results/plugin/README.md")
    assert f"takes {measured[8]['model_s']:.2f} s, our trainer's {found['trainer_model_s']:.2f} s" in page
    first = json.loads((RESULTS / "plugin/cost-first.json").read_text())
    eight, four = (row["model_s"] for row in first["rows"] if row["epochs"] in (8, 4))
    assert f"it took {eight:.2f} s against {first['trainer_model_s']:.2f} s, and 4 passes {four:.2f} s" in page
    times = json.loads((RESULTS / "plugin/update.json").read_text())
    ours, trainers = (np.median(times[name]) for name in ("explorer", "trainer"))
    share = f"{ours / trainers - 1:.1%}".replace("%", " %")
    assert f"the medians are {ours:.2f} s and {trainers:.2f} s: the same but for {share}." in page
    speeds = [f"{measured[epochs]['steps_per_s']:,.0f}" for epochs in (0, 8, 4)]
    share = f"{measured[8]['model_s'] / measured[8]['rollout_s']:.0%}".replace("%", " %")
    cost = f"{speeds[0]} steps/s without the bonus, {speeds[1]} with it, {share} of that time the model's training, and"
    for where in ("README.md", "docs/trainers.md"):
        assert f"{cost} {speeds[2]} with `epochs=4`" in _text(where), where


# Links -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "page",
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *RESULTS.rglob("*.md")],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, heading = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if link.startswith("http"):
            continue
        if not target.exists() or (heading and heading not in _headings(target)):
            broken.append(link)
    assert broken == []


def _headings(page: Path) -> list[str]:
    """As GitHub names them in links."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]


# Agents ----------------------------------------------------------------------------------------------------------


AGENTS = RESULTS / "agents"


def test_the_agents_page_has_what_their_cards_say() -> None:
    rows = find(AGENTS / "README.md", "level", "steps", "success in training", "return", "in 100 fresh episodes")
    folders = sorted(file.parent.name for file in AGENTS.glob("*/agent.json"))
    assert sorted(re.sub(r"\[(.*)\].*", r"\1", row["level"]) for row in rows) == folders
    for row in rows:
        folder = re.sub(r"\[(.*)\].*", r"\1", row["level"])
        card = json.loads((AGENTS / folder / "agent.json").read_text())["exported"]
        last = card["results"][card["seed"] - card["results"][0]["seed"]]
        assert row["steps"] == f"{last['step'] / 1e6:.0f} M", folder
        assert row["success in training"] == f"{last['success']:.1%}".replace("%", " %"), folder
        assert row["return"] == f"{last['return']:.2f}", folder


@pytest.mark.slow
@pytest.mark.parametrize("level", ["DoorKey-16x16", "MultiRoom-N6"])
def test_a_kept_agent_plays_as_well_as_its_card_says(level: str) -> None:
    card = json.loads((AGENTS / level / "agent.json").read_text())["exported"]
    assert agrees(card["results"][0], evaluate(AGENTS / level, 50)["overall"]["success"], 50)
