"""Whatever the files of a run hold, using it ends in a run or in one sentence: no traceback, no hang, no pickle."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from etd.cli import main
from etd.core.errors import UserError
from etd.lab.compare.plan import steps_done
from etd.lab.report.write import write
from etd.lab.runs import session, table
from etd.lab.runs.store import DAMAGED, Run

posix = pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Run:
    """A copy of a real run, of seeds 3 and 4 and five iterations, that may be damaged."""
    return Run.open(shutil.copytree(trained, tmp_path / "run"))


# The record ------------------------------------------------------------------------------------------------------


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def mixture(depth: int) -> dict[str, Any]:
    bonus: dict[str, Any] = {"class": "count"}
    for _ in range(depth):
        bonus = {"class": "mixture", "terms": [{"weight": 1.0, "factors": [bonus]}]}
    return bonus


CONTENTS = {
    "empty": (b"", "Expecting value"),
    "cut": (b'{"format": 2, "exp', "Unterminated string"),
    "list": (b"[]", "not a group of fields"),
    "null": (b"null", "not a group of fields"),
    "number": (b"3", "not a group of fields"),
    "NaN": (b"NaN", "not a group of fields"),
    "latin": (b'{"format": 2, "experiment": "\xe9"}', "can't decode"),
    "utf-16": ('{"format": 2}'.encode("utf-16"), "can't decode"),
    "surrogate": (b'{"format": 2, "experiment": {"env": {"id": "\\ud800"}}}', "surrogates not allowed"),
    "digits": (b'{"format": ' + b"9" * 5000 + b"}", "4300 digits"),
    "deep": (nested(100_000).encode(), "nested too deeply"),
    "rather deep": (json.dumps({"format": 2, "experiment": json.loads(nested(200))}).encode(), "nested too deeply"),
    "large": (b" " * 1_000_001, "more than 1,000,000 bytes"),
}
FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "no format": ({"format": None}, "format should be a whole number from 1 to 2, not None"),
    "format as text": ({"format": "2"}, "not '2'"),
    "format true": ({"format": True}, "not True"),
    "format 0": ({"format": 0}, "not 0"),
    "newer": ({"format": 3, "versions": ["0.9"]}, r"a newer etd \(\?\)"),
    "versions": ({"versions": ["0.1"]}, "versions should be a group of strings"),
    "versions of numbers": ({"versions": {"etd": 0.1}}, "versions should be a group of strings"),
    "device": ({"device": "cpu"}, "device should be a group of strings"),
    "sources": ({"sources": {"mine": "1.0"}}, "sources should be a group of groups"),
    "unwritable": ({"unwritable": {"bonus": 3}}, "unwritable should be a list of strings"),
    "no experiment": ({"experiment": None}, "no experiment"),
    "an empty experiment": ({"experiment": {}}, "no experiment"),
    "a list": ({"experiment": [1, 2]}, "no experiment"),
}
EXPERIMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "class": ({"class": "my_module:Experiment"}, "--import my_module"),
    "unknown field": ({"rollout": 16}, "no field 'rollout'"),
    "rollout 0": ({"rollout_steps": 0}, "rollout_steps = 0 is out of range"),
    "seeds true": ({"seeds": True}, "seeds takes a whole number, not True"),
    "seeds by the billion": ({"seeds": 10**9}, "at most 10000"),
    "seeds as text": ({"seeds": "2"}, "not '2'"),
    "seeds null": ({"seeds": None}, "seeds takes a whole number, not None"),
    "steps infinite": ({"steps": 1e999}, "steps takes a whole number, not inf"),
    "steps for ever": ({"steps": 1e20}, "below 2147483648"),
    "negative seed": ({"seed": -1}, "seed = -1 is out of range"),
    "huge seed": ({"seed": 2**40}, "below 2147483648"),
    "precision": ({"precision": ["float32"]}, "precision cannot be"),
    "env a string": ({"env": "MiniGrid-Empty-5x5-v0"}, "env should be a group of fields"),
    "env null": ({"env": None}, "env should be a group of fields, not None"),
    "env.id a list": ({"env": {"id": []}}, "env.id takes a string"),
    "noise nested": ({"env": {"noise": {"noise": 0.1}}}, "env.noise takes a number"),
    "noise NaN": ({"env": {"noise": float("nan")}}, "env.noise = nan is out of range"),
    "custom": ({"env": {"custom": 3}}, "env.custom should be a group of fields with a class"),
    "bonus null": ({"bonus": None}, "bonus should be a group of fields"),
    "bonus unknown": ({"bonus": {"class": "edt"}}, "Did you mean 'etd'"),
    "bonus numbered": ({"bonus": {"class": 3}}, "bonus.class should be the name of a Bonus"),
    "ppo a list": ({"ppo": [1]}, "ppo should be a group of fields"),
    "ppo infinite": (
        {"ppo": {"value_coef": 1e999}},
        "ppo.value_coef = inf is out of range: it must be a finite number",
    ),
    "mix": ({"mix": {"momentum": 1}}, "mix.momentum = 1.0 is out of range"),
    "cell": ({"ppo": {"cell": "gru"}}, "ppo.cell should be a group of fields"),
    "terms": ({"bonus": {"class": "mixture", "terms": [3]}}, "bonus.terms.0 should be a group of fields"),
    "no terms": ({"bonus": {"class": "mixture", "terms": []}}, "bonus.terms = .* is out of range"),
    "term": (
        {"bonus": {"class": "mixture", "terms": [{"class": "my:Term", "weight": 1.0, "factors": []}]}},
        "--import my",
    ),
    "factors": (
        {"bonus": {"class": "mixture", "terms": [{"weight": 1.0, "factors": ["my:Bonus"]}]}},
        "factors.0 should be a group of fields",
    ),
    "weight": (
        {"bonus": {"class": "mixture", "terms": [{"weight": float("nan"), "factors": [{"class": "count"}]}]}},
        "weight = nan is out of range",
    ),
    "mixtures in mixtures": ({"bonus": mixture(60)}, "nested too deeply"),
    "a long string": ({"precision": "x" * 500_000}, r"precision cannot be 'x{20,300}\.\.\."),
}


def refused(path: Path, says: str) -> None:
    with pytest.raises(UserError, match=says) as stop:
        Run.open(path)
    words = str(stop.value)
    assert words.startswith(str(path))
    assert "\n" not in words
    assert len(words) < 800


@pytest.mark.parametrize("name", CONTENTS)
def test_a_file_that_is_no_record_is_said(run: Run, name: str) -> None:
    content, says = CONTENTS[name]
    (run.path / "run.json").write_bytes(content)
    refused(run.path, says)


@pytest.mark.parametrize("name", FIELDS)
def test_a_record_with_a_wrong_part_is_said(run: Run, name: str) -> None:
    changes, says = FIELDS[name]
    (run.path / "run.json").write_text(json.dumps({**run.record, **changes}))
    refused(run.path, says)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_is_judged_as_the_command_line_would(run: Run, name: str) -> None:
    changes, says = EXPERIMENTS[name]
    experiment = dict(run.record["experiment"])
    for part, value in changes.items():
        old = experiment.get(part)
        merge = isinstance(value, dict) and isinstance(old, dict) and "class" not in value
        experiment[part] = {**old, **value} if merge else value
    (run.path / "run.json").write_text(json.dumps({**run.record, "experiment": experiment}))
    refused(run.path, says)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, part in inner for found in leaves(part, (*path, key)))]


@pytest.mark.parametrize(
    "wrong",
    [None, True, -1, 0, 1e999, float("nan"), 10**400, "", "etd:Run", "os:system", [], [[]], {}, {"class": "os:system"}],
    ids=lambda wrong: repr(wrong)[:20],
)
def test_whatever_a_record_says_somewhere_it_opens_or_is_refused(run: Run, wrong: Any) -> None:
    places = [place for place in leaves(run.record) if place]
    assert len(places) > 50
    for place in places:
        record = json.loads(json.dumps(run.record))
        inner = record
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = wrong
        (run.path / "run.json").write_text(json.dumps(record))
        try:
            opened = Run.open(run.path)
        except UserError:
            continue
        opened.metrics()
        opened.flaws()


@posix
def test_what_is_no_file_is_neither_read_nor_waited_for(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    file = run.path / "run.json"
    file.unlink()
    os.mkfifo(file)
    for command in ("report", "resume", "evaluate", "watch"):
        with pytest.raises(SystemExit) as stop:
            main([command, str(run.path)])
        assert stop.value.code == 2
        assert "run.json cannot be used: it is a pipe or device, not a file" in capsys.readouterr().err
    with pytest.raises(UserError, match="pipe or device"):
        steps_done(run.path)  # as etd compare asks
    file.unlink()
    file.symlink_to("/dev/zero")
    refused(run.path, "pipe or device")
    file.unlink()
    file.mkdir()
    refused(run.path, "it is a folder, not a file")
    file.rmdir()
    file.symlink_to(file)
    refused(run.path, "symbolic links")


# Metrics ---------------------------------------------------------------------------------------------------------


def cut(rows: list[str], *numbers: int) -> list[str]:
    return [row for number, row in enumerate(rows) if number not in numbers]


METRICS: dict[str, tuple[Callable[[list[str]], str | bytes], str, int]] = {
    # row k > 0 is of iteration (k + 1) // 2; the last number is how many rows remain
    "whole": (lambda rows: "".join(rows), "", 10),
    "CRLF": (lambda rows: "".join(rows).replace("\n", "\r\n"), "", 10),
    "with a mark of order": (lambda rows: "\ufeff" + "".join(rows), "", 10),
    "a torn last row": (lambda rows: "".join(rows)[:-3], "rows of iteration 5 are missing", 9),
    "the middle": (lambda rows: "".join(cut(rows, 3, 4)), "rows of iterations 2 are missing", 8),
    "one seed": (lambda rows: "".join(cut(rows, 2, 8, 10)), "rows of iterations 1, 4 to 5 are missing", 7),
    "twice": (lambda rows: "".join([*rows, rows[4], rows[5]]), "2 rows were written twice", 10),
    "NULs": (lambda rows: "".join(rows[:9]) + "\0" * 500 + "\n", "1 line cannot be read, rows of iteration 5", 8),
    "a column less": (lambda rows: "".join([*rows[:10], rows[10].partition(",")[2]]), "1 line cannot be read", 9),
    "words": (lambda rows: "".join([*rows[:10], rows[10].replace(",", ",a", 3)]), "1 line cannot be read", 9),
    "infinite": (lambda rows: "".join([*rows[:10], "1e999" + rows[10][1:]]), "1 line cannot be read", 9),
    "of another seed": (lambda rows: "".join([*rows, rows[9].replace(",3,", ",300,", 1)]), "1 line cannot be read", 10),
    "quotes": (lambda rows: "".join([*rows[:10], '"' + rows[10]]), "1 line cannot be read", 9),
    "no header": (lambda rows: "".join(rows[1:]), "10 lines cannot be read, rows of iterations 1 to 5 are", 0),
    "a header twice": (lambda rows: rows[0].replace("alive", "seed") + "".join(rows[1:]), "11 lines", 0),
    "prose": (lambda rows: "Dear diary,\ntoday I learned nothing.\n", "2 lines cannot be read", 0),
    "bytes": (lambda rows: bytes(range(256)) * 20, "cannot be read, rows of iterations 1 to 5 are missing", 0),
    "utf-16": (lambda rows: "".join(rows).encode("utf-16"), "11 lines cannot be read", 0),
    "empty": (lambda rows: "", "rows of iterations 1 to 5 are missing", 0),
}


@pytest.mark.parametrize("name", METRICS)
def test_metrics_are_read_as_far_as_possible_and_their_flaws_said(run: Run, name: str) -> None:
    before = run.metrics()
    damage, says, left = METRICS[name]
    content = damage(run.metrics_file.read_text().splitlines(keepends=True))
    content = content if isinstance(content, bytes) else content.encode()
    run.metrics_file.write_bytes(content)
    assert says in run.flaws()
    assert bool(run.flaws()) == bool(says)
    found = run.metrics()
    assert len(found.get("iteration", [])) == left
    if left == 10:
        np.testing.assert_equal(found, before)
    run.rewind(5)
    np.testing.assert_equal(run.metrics(), found)
    run.log([{name: 6 if name == "iteration" else 3 for name in before}])  # the seed is 3, too
    assert b"\r" not in run.metrics_file.read_bytes()
    assert len(run.metrics()["iteration"]) == left + 1
    assert ((run.path / DAMAGED).read_bytes() == content) if "cannot be read" in says or "lines" in says else True


def test_a_resumed_run_tells_of_its_gaps_and_goes_on(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    lines = run.metrics_file.read_text().splitlines(keepends=True)
    run.metrics_file.write_text("".join(cut(lines, 3, 9, 10)))
    done = session.resume(run.path, steps=384)
    assert "are not whole: rows of iterations 2, 5 are missing." in capsys.readouterr().out
    assert done.metrics()["iteration"].tolist() == [1, 1, 2, 3, 3, 4, 4, 6, 6]
    assert done.keep(run.path.parent / "kept").flaws() == ""  # thinned on purpose


def test_a_page_about_damaged_metrics_is_written_or_refused(run: Run) -> None:
    run.metrics_file.write_text("what\n")
    secret = run.path.parent / "secret"
    secret.write_bytes(b"GIF of a secret")
    (run.path / "episode.gif").symlink_to(secret)
    run.path = run.path.rename(run.path.with_name(r"a run for $\x{1}$"))
    page = write([run.path], run.path / "report.html").read_text()
    assert "are not whole: 1 line cannot be read, rows of iterations 1 to 5 are missing." in page
    assert "data:image/gif" not in page
    for missing, content in {
        "step": "iteration,seed,return\n1,3,0.5\n",
        "return": "iteration,seed,step\n1,3,64\n",
    }.items():
        run.metrics_file.write_text(content)
        with pytest.raises(UserError, match=f"has no metric '{missing}'"):
            write([run.path], run.path / "report.html")


@posix
def test_metrics_that_are_no_file_are_said(run: Run) -> None:
    run.metrics_file.unlink()
    os.mkfifo(run.metrics_file)
    for use in (run.metrics, run.flaws, lambda: write([run.path], run.path), lambda: session.resume(run.path)):
        with pytest.raises(UserError, match=r"metrics\.csv cannot be read: it is a pipe or device, not a file\. Move"):
            use()
    run.metrics_file.unlink()
    with run.metrics_file.open("wb") as file:
        file.truncate(table.LARGEST + 1)  # takes no space
    with pytest.raises(UserError, match="more than 2,147,483,648 bytes"):
        run.metrics()


def test_names_of_columns_survive_a_rewind(run: Run) -> None:
    run.metrics_file.unlink()
    run.log([{"iteration": k, "seed": 3, 'a,"b"': 0.5} for k in (1, 2)])
    run.rewind(1)
    assert run.metrics() == {"iteration": [1], "seed": [3], 'a,"b"': [0.5]}


# Checkpoints -----------------------------------------------------------------------------------------------------

LIKE = {"key": jax.random.key(0), "net": {"bias": jnp.arange(3.0), "kernel": jnp.ones((2, 3), jnp.int32)}}


@pytest.fixture
def saved(run: Run) -> Run:
    """With checkpoints 8 and 9 of a small state."""
    for file in run.checkpoints():
        file.unlink()
    for iteration in (8, 9):
        run.save(LIKE, iteration)
    return run


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def packed(compression: int = zipfile.ZIP_STORED, **members: bytes) -> bytes:
    """An archive of the state with some members changed."""
    whole = {"key": npy(np.zeros(2, np.uint32)), "net/bias": npy(np.arange(3, dtype=np.float32))}
    whole["net/kernel"] = npy(np.ones((2, 3), np.int32))
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, content in {**whole, **{name.replace("__", "/"): part for name, part in members.items()}}.items():
            archive.writestr(f"{name}.npy", content)
    return stream.getvalue()


def header(shape: str, kind: str = "<f4") -> bytes:
    text = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


class Bomb:
    """Says so when it is unpickled."""

    def __reduce__(self) -> Any:
        return pytest.fail, ("unpickled",)


BROKEN: dict[str, tuple[bytes, str]] = {
    "zero length": (b"", "not a zip file"),
    "words": (b"not a checkpoint", "not a zip file"),
    "an array": (npy(np.ones(3)), "not a zip file"),
    "cut": (packed()[:-30], "not a zip file"),
    "terabytes": (packed(net__bias=header("(1000000000000,)")), "asks for 4,000,000,000,0.. bytes of"),
    "terabytes, compressed": (packed(zipfile.ZIP_DEFLATED, net__bias=header("(1000000000000,)")), "asks for"),
    "a negative size": (packed(net__bias=header("(-1,)")), "asks for"),
    "no header": (packed(net__bias=b"abc"), "the header of net/bias cannot be read"),
    "another format": (packed(net__bias=b"\x93NUMPY\x03\x00"), "cannot be read"),
    "nested header": (packed(net__bias=header("(" * 3000)), "cannot be read"),
    "objects": (packed(net__bias=npy(np.array([Bomb()], object))), "holds Python objects"),
}


def same(state: Any) -> None:
    bare = [jax.random.key_data(leaf) if leaf.dtype == LIKE["key"].dtype else leaf for leaf in jax.tree.leaves(state)]
    for ours, theirs in zip(bare, [jax.random.key_data(LIKE["key"]), *jax.tree.leaves(LIKE["net"])], strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", BROKEN)
def test_the_checkpoint_before_a_broken_one_is_used(saved: Run, name: str) -> None:
    content, says = BROKEN[name]
    newest, before = saved.checkpoints()
    newest.write_bytes(content)
    state, iteration, (complaint,) = saved.load(LIKE)
    same(state)
    assert iteration == 8
    assert complaint.startswith("Checkpoint 0000009.npz is damaged (")
    assert re.search(says, complaint)
    before.write_bytes(content)
    with pytest.raises(UserError, match="no readable checkpoint"):
        saved.load(LIKE)


@posix
@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "link to nothing"])
def test_a_checkpoint_that_is_no_file_is_neither_read_nor_waited_for_nor_removed(saved: Run, kind: str) -> None:
    newest = saved.checkpoints()[0]
    newest.unlink()
    if kind == "folder":
        newest.mkdir()
    elif kind == "pipe":
        os.mkfifo(newest)
    else:
        newest.symlink_to("/dev/zero" if kind == "device" else "nowhere")
    state, iteration, (complaint,) = saved.load(LIKE)
    same(state)
    assert (iteration, "0000009.npz is damaged" in complaint) == (8, True)
    saved.save(state, 10)
    assert saved.load(LIKE)[1:] == (10, [])
    assert newest.is_dir() == (kind == "folder")


def test_every_byte_that_flips_is_noticed_or_harmless(saved: Run) -> None:
    """The state is the same, or the one before it; never is the file said to be intact but of another state. Every
    other byte, to save time."""
    newest = saved.checkpoints()[0]
    whole = newest.read_bytes()
    noticed = 0
    for place in range(0, len(whole), 2):
        newest.write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
        try:
            state, _, complaints = saved.load(LIKE)
        except UserError as error:
            pytest.fail(f"byte {place}: {error}")
        same(state)
        noticed += len(complaints)
    assert noticed > len(whole) / 4


def test_a_checkpoint_of_another_state_is_intact_and_stays(saved: Run) -> None:
    newest = saved.checkpoints()[0]
    others = {
        r"net/bias is float32\[4\] in the checkpoint": packed(net__bias=npy(np.ones(4, np.float32))),
        r"net/bias is float64\[3\]": packed(net__bias=npy(np.ones(3))),
        r"it has \.\./\.\./etc/passwd, which the code does not": packed(**{"..__..__etc__passwd": b"x"}),
    }
    for says, content in others.items():
        newest.write_bytes(content)
        with pytest.raises(UserError, match=f"intact but does not fit the current code: {says}"):
            saved.load(LIKE)
        assert newest.read_bytes() == content
    with pytest.raises(UserError, match="it has no more"):
        saved.load({**LIKE, "more": jnp.ones(1)})


def test_names_that_are_no_numbers_are_no_checkpoints(saved: Run) -> None:
    folder = saved.path / "checkpoints"
    for name in ("latest.npz", "-1.npz", "²²².npz", "٣.npz", "1e9.npz", f"{'9' * 40}.npz", ".npz"):
        (folder / name).write_bytes(b"x")
    assert [file.stem for file in saved.checkpoints()] == ["0000009", "0000008"]


def test_who_loads_the_checkpoint_before_a_broken_one_is_told(run: Run) -> None:
    newest = run.checkpoints()[0]
    shutil.copy(newest, newest.with_name("0000004.npz"))
    newest.write_bytes(b"")
    with pytest.warns(UserWarning, match=r"0000005\.npz is damaged .* trying the previous one"):
        assert session.load(run.path)[0].experiment == run.experiment


def test_an_unreadable_checkpoint_is_not_gone_back_on(saved: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be readable again tomorrow; to go on from the one before would drop it."""

    def deny(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", deny)
    with pytest.raises(UserError, match=r"0000009\.npz cannot be read: Permission denied"):
        saved.load(LIKE)


def test_damaged_checkpoints_never_crowd_out_intact_ones(saved: Run) -> None:
    """They are newer than those that follow when the run has gone back on them."""
    for iteration in (10, 11):
        saved.save(LIKE, iteration)
    for file in saved.checkpoints():
        file.write_bytes(b"")
    saved.save(LIKE, 9)
    assert saved.load(LIKE)[1:] == (9, [])


# What is left behind ---------------------------------------------------------------------------------------------


def test_what_killed_processes_leave_is_removed(saved: Run) -> None:
    left = (".run.json.k2x.json", ".metrics.csv.1a.csv", "run.json.part", "checkpoints/.0000009.npz.q.npz")
    left = (*left, "checkpoints/0000009.part")
    for name in left:
        (saved.path / name).touch()
    (saved.path / "notes.txt").touch()
    saved.rewind(9)
    assert not any((saved.path / name).exists() for name in left)
    assert (saved.path / "notes.txt").exists()


def test_a_link_in_place_of_the_replaced_run_is_refused(saved: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "run.json").write_text("mine")
    saved.aside.symlink_to(tmp_path / "mine")
    for use in (
        lambda: saved.save(LIKE, 10),
        lambda: session.resume(saved.path, quiet=True),
        lambda: Run.create(saved.path, saved.experiment, overwrite=True),
    ):
        with pytest.raises(UserError):
            use()
    assert (tmp_path / "mine" / "run.json").read_text() == "mine"
    assert len(saved.checkpoints()) == 2
