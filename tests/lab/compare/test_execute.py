"""The one loop over trainings, wherever they run: failures, losses, signals, budgets."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread

import jax
import numpy as np
import pytest
from tests.conftest import QUICK_VARIABLES
from tests.lab.conftest import small_experiment

from etd.bonuses import BONUSES, NoBonus
from etd.core.errors import UserError
from etd.lab.compare import execute as executing
from etd.lab.compare.execute import LOSSES, Ending, Work, drive, execute, train, train_elsewhere
from etd.lab.compare.plan import ERROR, Entry, make
from etd.lab.runs.store import Run


class Script:
    """A backend that answers as it is told: each work's path names the outcomes it has in turn."""

    def __init__(self, outcomes, room=2):
        self.outcomes, self.room = {path: list(those) for path, those in outcomes.items()}, room
        self.begun, self.running, self.most, self.cancelled, self.closed = [], [], 0, False, False

    def submit(self, work):
        self.begun.append(work.path.name)
        self.running.append(work.path.name)
        self.most = max(self.most, len(self.running))
        return work.path.name

    def ended(self):
        name = self.running.pop(0)
        return [(name, self.outcomes[name].pop(0) if name in self.outcomes else Ending(64))]

    def cancel(self):
        self.cancelled = True

    def close(self):
        self.closed = True


def works(folder, *names):
    return [Work(name, folder / name, small_experiment(), None, False, True, ()) for name in names]


def driven(backend, work, stop=None):
    told = {}
    drive(
        backend,
        work,
        [] if stop is None else stop,
        lambda index, outcome: told.update({work[index].path.name: outcome}),
    )
    assert backend.closed
    return told


def test_all_is_done_in_order_and_never_more_than_there_is_room_for(tmp_path):
    backend = Script({})
    assert driven(backend, works(tmp_path, *"abcde")) == {name: Ending(64) for name in "abcde"}
    assert backend.begun == list("abcde")
    assert backend.most == 2


def test_a_failure_does_not_stop_the_others(tmp_path):
    backend = Script({"b": [Ending(error="It broke.")]})
    told = driven(backend, works(tmp_path, *"abc"))
    assert [name for name, outcome in told.items() if outcome.error] == ["b"]
    assert backend.begun == list("abc")


def test_one_whose_worker_is_lost_goes_on_and_after_too_many_losses_fails_alone(tmp_path):
    backend = Script({"a": [None] * LOSSES + [Ending(128)], "b": [None] * (LOSSES + 1)})
    told = driven(backend, works(tmp_path, *"abc"))
    assert told["a"] == Ending(128)
    assert told["c"] == Ending(64)
    assert f"killed {LOSSES + 1} times" in told["b"].error
    assert (tmp_path / "b" / ERROR).read_text() == told["b"].error
    assert backend.begun.count("b") == LOSSES + 1


def test_a_worker_that_somebody_else_has_stopped_goes_on(tmp_path):
    backend = Script({"a": [Ending(64, stopped=signal.SIGTERM), Ending(128)]})
    assert driven(backend, works(tmp_path, "a")) == {"a": Ending(128)}


def test_asked_to_stop_it_waits_for_what_runs_and_begins_nothing(tmp_path):
    stop: list[int] = []

    class Asked(Script):
        def ended(self):
            stop.append(signal.SIGTERM)
            return super().ended()

    backend = Asked({"b": [None]})  # killed before it could save; it is not begun again
    assert driven(backend, works(tmp_path, *"abcd"), stop) == {"a": Ending(64)}
    assert backend.begun == ["a", "b"]
    assert backend.cancelled


def test_side_by_side_the_longest_are_first(tmp_path, monkeypatch):
    backends = []
    monkeypatch.setattr(executing, "_Processes", lambda *_, **__: backends.append(Script({})) or backends[0])
    lengths = {"short": 64, "long": 6400, "middle": 640}
    entries = [Entry("task", name, small_experiment(steps=steps)) for name, steps in lengths.items()]
    execute(make(entries, tmp_path), workers=2)
    assert backends[0].begun == ["long", "middle", "short"]


def test_a_cluster_is_given_whole_paths(tmp_path, monkeypatch):
    """Its workers have other working directories."""
    asked: list[Path] = []

    class Cluster(Script):
        def submit(self, work):
            asked.append(work.path)
            return super().submit(work)

    monkeypatch.setattr(executing, "_Cluster", lambda _: Cluster({}))
    monkeypatch.chdir(tmp_path)
    execute(make([Entry("task", "etd", small_experiment())], Path("runs")), cluster="auto")
    assert asked == [tmp_path / "runs" / "task" / "etd"]


@dataclass(frozen=True)
class Broken(NoBonus):
    """Fails when it is traced."""

    politely: bool = False

    def score(self, state, rollout, key):
        raise UserError("Not today.") if self.politely else ZeroDivisionError("in the user's own code")


@pytest.fixture
def broken(monkeypatch):
    monkeypatch.setitem(BONUSES, "broken", Broken)
    return replace(small_experiment(), bonus=Broken())


@pytest.mark.slow
def test_an_error_is_kept_beside_the_run_until_it_is_mended(broken, tmp_path, monkeypatch):
    plan = make([Entry("Empty", "broken", broken), Entry("Empty", "etd", small_experiment())], tmp_path)
    plan = execute(plan, quiet=True)
    bad, good = plan.jobs
    assert good.done
    assert not bad.done
    assert bad.error == (bad.path / ERROR).read_text()
    assert "Traceback" in bad.error
    assert "in the user's own code" in bad.error
    assert "test_execute.py" in bad.error  # where it happened

    monkeypatch.setattr(Broken, "score", NoBonus.score)
    (bad, _) = execute(plan, quiet=True).jobs
    assert bad.done
    assert not (bad.path / ERROR).exists()


def test_a_users_mistake_is_kept_as_a_sentence(broken, tmp_path):
    polite = replace(broken, bonus=Broken(politely=True))
    assert train(Work("broken", tmp_path / "run", polite, None, False, True, ())) == Ending(error="Not today.")
    assert (tmp_path / "run" / ERROR).read_text() == "Not today."


def test_a_place_that_cannot_be_written_is_a_failure_too(tmp_path):
    (tmp_path / "file").touch()
    outcome = train(Work("broken", tmp_path / "file" / "run", small_experiment(), None, False, True, ()))
    assert "a file is in the way" in outcome.error


def test_work_whose_module_is_missing_elsewhere_is_a_failure(tmp_path):
    data = pickle.dumps(Broken()).replace(b"test_execute", b"no_such_file")
    outcome = train_elsewhere(str(tmp_path / "run"), data)
    assert "No module named 'no_such_file'" in outcome.error
    assert (tmp_path / "run" / ERROR).exists()


@pytest.mark.parametrize("where", [{"workers": 2}, {"cluster": "auto"}])
def test_what_cannot_be_written_down_trains_in_this_process_only(tmp_path, where):
    @dataclass(frozen=True)
    class Nameless(NoBonus):
        pass

    nameless = replace(small_experiment(), bonus=Nameless())
    plan = make([Entry("Empty", "etd", small_experiment())], tmp_path)
    plan = replace(plan, jobs=(replace(plan.jobs[0], entry=Entry("Empty", "mine", nameless)),))
    with pytest.raises(UserError, match=r"No other process can train Empty/mine: bonus is .*Nameless.* one worker"):
        execute(plan, **where)
    assert not list(tmp_path.iterdir())


def test_less_than_one_worker_is_a_mistake(tmp_path):
    with pytest.raises(UserError, match="0 workers"):
        execute(make([Entry("Empty", "etd", small_experiment())], tmp_path), workers=0)


# Processes -------------------------------------------------------------------------------------------------------


@pytest.fixture
def settings(monkeypatch):
    """A worker compiles as these tests do."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", jax.config.jax_compilation_cache_dir)
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    for name, value in QUICK_VARIABLES.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def long(settings, tmp_path):
    """Three trainings of hours."""
    entries = [Entry(f"Empty {k}", "etd", small_experiment(steps=64 * 10**6)) for k in range(3)]
    return make(entries, tmp_path)


def begun(out):
    """The runs that have logged something."""
    return [file.parent for file in sorted(out.glob("*/etd/metrics.csv")) if len(file.read_text().splitlines()) > 4]


def until(condition):
    for _ in range(1200):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("it never came")


def workers():
    """The processes that train for this one."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"import serve" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:  # it ended meanwhile
            continue
    return found


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_asked_to_stop_no_further_training_begins(long, tmp_path, count):
    def ask():
        until(lambda: len(begun(tmp_path)) == count)
        os.kill(os.getpid(), signal.SIGTERM)

    asker = Thread(target=ask)
    asker.start()
    after = execute(long, workers=count, quiet=True)
    asker.join()
    assert after.stopped == signal.SIGTERM
    assert not any(job.done or job.error for job in after.jobs)
    assert after.stopped == signal.SIGTERM
    runs = [Run.open(path) for path in begun(tmp_path)]
    assert len(runs) == count == len(list(tmp_path.glob("Empty*")))
    for run in runs:
        assert int(run.checkpoints()[0].stem) == run.metrics()["iteration"].max()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds workers in /proc")
def test_a_killed_worker_is_replaced_and_a_failing_one_told(broken, settings, tmp_path):
    """One of two equal trainings is killed and goes on: both reach the same end. A third fails, as its bonus is not
    registered in another process."""
    entries = [Entry(f"Empty {k}", "etd", small_experiment(steps=64 * 100)) for k in range(2)]
    plan = make([*entries, Entry("Empty", "broken", broken)], tmp_path)
    killed: list[int] = []

    def kill():
        until(lambda: begun(tmp_path))
        killed.append(workers()[0])
        os.kill(killed[0], signal.SIGKILL)

    killer = Thread(target=kill)
    killer.start()
    after = execute(plan, workers=2, quiet=True)
    killer.join()
    assert killed
    assert [job.done for job in after.jobs] == [True, True, False]
    assert "Traceback" in after.jobs[2].error
    one, two = (Run.open(job.path).metrics() for job in after.jobs[:2])
    np.testing.assert_array_equal(one["iteration"], np.repeat(np.arange(1, 101), 2))
    np.testing.assert_array_equal(one["bonus_mean"], two["bonus_mean"])
    assert workers() == []


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's doing, on Linux")
def test_workers_end_with_a_killed_parent(long, tmp_path):
    file = tmp_path / "plan.pickle"
    file.write_bytes(pickle.dumps(long))
    # A script without a guard for its main module, which a worker must not run again.
    code = "import pickle; from etd.lab.compare.execute import execute; from pathlib import Path\n"
    code += f"execute(pickle.loads(Path({str(file)!r}).read_bytes()), workers=2)"
    script = tmp_path / "script.py"
    script.write_text(code)
    parent = subprocess.Popen(
        [sys.executable, str(script)], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    until(lambda: len(begun(tmp_path)) == 2)
    parent.kill()
    parent.wait()
    time.sleep(0.5)
    before = [(path / "metrics.csv").stat().st_size for path in begun(tmp_path)]
    time.sleep(1)
    assert [(path / "metrics.csv").stat().st_size for path in begun(tmp_path)] == before
