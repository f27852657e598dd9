"""Training in environments of the host: the same learner result as on the device, ends, resumption, faults."""

from __future__ import annotations

import errno
import gc
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

pytest.importorskip("gymnasium")

from tests.closeness import assert_close
from tests.corridor import CELLS, HOST, Corridor

from etd.agent.ppo import PPO
from etd.bonuses import ETD
from etd.core.errors import UserError
from etd.core.types import Rollout
from etd.envs import Task
from etd.envs.host import pool
from etd.envs.host.env import HostEnv, Normaliser
from etd.envs.host.pool import WorkerError
from etd.lab.runs import session
from etd.lab.runs.progress import Progress
from etd.training import backend, learn
from etd.training.experiment import Experiment
from etd.training.host_collect import HostCollector

TINY = Experiment(
    env=Task(HOST),
    bonus=ETD(minibatch=20, epochs=1, features=8, latent=8, embedding=8, norm="layer"),
    ppo=PPO(minibatch=20, epochs=1, features=8, latent=8, norm="layer"),
    num_envs=4,
    rollout_steps=10,
    steps=120,
    seed=5,
    seeds=2,
)

pytestmark = pytest.mark.usefixtures("compile_quickly")


@pytest.fixture
def fault(tmp_path, monkeypatch):
    """Writes what goes wrong next in any corridor."""
    folder = tmp_path / "faults"
    folder.mkdir()
    monkeypatch.setenv("CORRIDOR_FAULTS", str(folder))

    def write(*faults):
        for number, words in enumerate(faults):
            (folder / str(number)).write_text(words)

    return write


@pytest.fixture
def one_worker(monkeypatch):
    """For all environments; by default there is one for each core, which takes longer to start."""
    monkeypatch.setenv("ETD_WORKERS", "1")


def copied(tree):
    return jax.tree.map(np.array, jax.device_get(tree))


@pytest.fixture(scope="module")
def together():
    """States and rollouts of three iterations on the host, both seeds."""
    states, rollouts, inner = [], [], HostCollector.rollout

    def remember(*args):
        hidden, rollout = inner(*args)
        rollouts.append(rollout)
        return hidden, rollout

    with pytest.MonkeyPatch.context() as patch, backend.open(TINY) as agents:
        patch.setattr(HostCollector, "rollout", remember)
        state = agents.start()
        for _ in range(3):
            state, metrics = agents.advance(state)
            states.append((copied(state._replace(key=None)), copied(metrics)))
    return states, rollouts


def test_host_and_device_learn_the_same(together):
    """Same weights, bonuses and metrics from the same task behind either protocol."""
    states, _ = together
    alone = replace(TINY, seeds=1)
    step = jax.jit(partial(learn.iterate, alone, Corridor()))
    for index, seed in enumerate((5, 6)):
        state = learn.init(alone, Corridor(), jax.random.key(seed))
        for k in range(3):
            state, metrics = step(state)
            on_host, said = states[k]
            mine = jax.tree.map(lambda leaf, i=index: leaf[i], on_host.learner)
            # Not the ledger: the host names states by what is seen of them.
            for part in ("policy", "bonus", "bonus_moments", "advantage_moments"):
                assert_close(getattr(mine, part), getattr(copied(state.learner), part))
            for name in ("return", "length", "success", "episodes", "bonus_mean", "model_loss", "ppo_kl"):
                np.testing.assert_allclose(said[name][index], metrics[name], rtol=1e-3, atol=1e-5, err_msg=name)


def first(env, num_envs):
    """One seed's environments at their start, [1, N]."""
    return jax.tree.map(lambda leaf: leaf[None], env.begin(num_envs))


def silent(obs, action):
    """What ``make_actor`` makes of a policy that always acts alike and remembers nothing."""
    nothing = np.zeros(obs.shape[:2], np.float32)
    return {"action": nothing.astype(np.int32) + action, "log_prob": nothing, "value": nothing}


def test_the_policy_looks_while_environments_step(one_worker, monkeypatch):
    """At every look but the first and the last the other group is stepping."""
    env, stepping, seen = Task(HOST).host(), [], []
    collector = HostCollector(env, [0], "train", first(env, 2))
    step, wait = collector.pool.step, collector.pool.wait

    def look(policy, obs, hidden, noise):
        seen.append(stepping.copy())
        return silent(obs, 0), hidden

    monkeypatch.setattr(collector.pool, "step", lambda group: (stepping.append(group), step(group)))
    monkeypatch.setattr(collector.pool, "wait", lambda: (wait(), stepping.pop(0)))
    try:
        collector.rollout(look, None, np.zeros((1, 2, 1), np.float32), np.zeros((1, 3, 2), np.float32))
    finally:
        collector.close()
    assert seen == [[], [0], [1], [0], [1], [0], [1], []]


def test_an_episode_that_breaks_its_limit_ends_with_a_sentence(one_worker):
    """The corridor takes up to seven steps; its spec here says that none takes more than three."""

    class Short(HostEnv):
        @property
        def spec(self):
            return replace(super().spec, max_steps=3)

    env = Short(HOST)
    collector = HostCollector(env, [0], "train", first(env, 2))
    turns = iter(range(100))

    def look(policy, obs, hidden, noise):
        return silent(obs, next(turns) // 2 % 2), hidden  # left, right, left: it stays near the middle

    try:
        with pytest.raises(UserError, match=r"has reached 4 steps, but its spec says max_steps=3\."):
            collector.rollout(look, None, np.zeros((1, 2, 1), np.float32), np.zeros((1, 6, 2), np.float32))
    finally:
        collector.close()


def test_rollouts_keep_true_ends(together):
    """Every episode walks cell by cell from the middle to its true last cell; then the next begins."""
    for rollout in together[1]:
        rollout = Rollout(*jax.tree.map(lambda leaf: leaf[0], rollout))
        cell, after = rollout.obs[..., :CELLS].argmax(-1), rollout.next_obs[..., :CELLS].argmax(-1)
        np.testing.assert_array_equal(after, cell[:-1] + 2 * rollout.action - 1)
        done = rollout.step.terminated | rollout.step.truncated
        assert done.any()
        np.testing.assert_array_equal(cell[1:], np.where(done, CELLS // 2, after))
        np.testing.assert_array_equal(rollout.step.terminated, (after == 0) | (after == CELLS - 1))
        np.testing.assert_array_equal(rollout.step.truncated, np.isclose(rollout.next_obs[..., -1], 1))
        np.testing.assert_array_equal(rollout.step.reward, after == CELLS - 1)
        assert not rollout.hidden[1:][done].any()
        assert rollout.hidden[1:][~done].any()


@pytest.fixture(scope="module")
def resumed(together):
    """The state after two iterations, as a checkpoint gives it back."""

    def build(after):
        start, key = together[0][after - 1][0], backend.open(TINY).start().key
        assert start.envs.time.any()  # episodes were under way
        return jax.tree.map(jax.numpy.asarray, start._replace(key=key))

    return build


def test_resuming_is_exact(together, resumed):
    """From the second state on, in new worker processes: bit for bit the third."""
    states, _ = together
    with backend.open(TINY) as agents:
        state, metrics = agents.advance(resumed(2))
    jax.tree.map(np.testing.assert_array_equal, copied(state._replace(key=None)), states[2][0])
    jax.tree.map(np.testing.assert_array_equal, copied(metrics), states[2][1])


def test_closed_it_goes_on_where_it_was(together):
    """New workers come to where the state has the environments: bit for bit as if they had never ended."""
    with backend.open(TINY) as agents:
        state, _ = agents.advance(agents.start())
        before = agents.collector.pool.workers
        agents.close()
        assert all(worker.process.poll() is not None for worker in before)
        state, _ = agents.advance(state)
    jax.tree.map(np.testing.assert_array_equal, copied(state._replace(key=None)), together[0][1][0])


def test_what_does_not_repeat_itself_ends_and_is_told(resumed, together, monkeypatch):
    """Observations that depend on the process cannot be found again: every running episode is cut."""
    experiment, said, start = replace(TINY, env=Task(HOST.replace("Corridor-v0", "Drift-v0"))), [], resumed(2)
    cut, rollouts, inner = np.asarray(start.envs.time) > 0, [], HostCollector.rollout

    def remember(*args):
        rollouts.append(inner(*args)[1])
        raise UserError("enough was seen")

    monkeypatch.setattr(HostCollector, "rollout", remember)
    with backend.open(experiment, said.append) as agents, pytest.raises(UserError, match="enough"):
        agents.advance(start)
    step = rollouts[0].step
    np.testing.assert_array_equal(step.truncated[:, 0] & ~step.terminated[:, 0], cut)
    assert f"{cut.sum()} of 8 environments" in said[0]
    assert not step.reward[:, 0][cut].any()
    assert not start.iteration.is_deleted()  # a failure before learning leaves the state whole


def test_a_run_from_start_to_film(tmp_path):
    """Train, stop, resume: the same numbers as without the stop."""
    whole = session.train(experiment=TINY, out=tmp_path / "whole", quiet=True)
    session.train(experiment=replace(TINY, steps=40), out=tmp_path / "parts", quiet=True)
    parts = session.resume(tmp_path / "parts", steps=120, quiet=True)
    one, two = whole.metrics(), parts.metrics()
    for name in one.keys() - {"wall"}:
        np.testing.assert_array_equal(one[name], two[name], err_msg=name)


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        (["step raise"], ["the floor gave way"]),
        (["step kill"], ["killed by signal 9"]),
        (["step kill", "build raise"], ["killed by signal 9", "the floor gave way"]),
        (["step hang up"], ["nobody is there"]),
    ],
)
def test_a_worker_that_dies_is_replaced(fault, faults, words):
    """Each death: one sentence, also of a worker that dies before it is ready; the episodes it played are truncated,
    without reward; training goes on."""
    said = []
    with backend.open(replace(TINY, seeds=1), said.append) as agents:
        state, _ = agents.advance(agents.start())
        fault(*faults)
        before = agents.collector.pool.workers[:]
        state, metrics = agents.advance(state)
        assert sum(a is not b for a, b in zip(before, agents.collector.pool.workers, strict=True)) == 1
        assert len(said) == len(words)
        assert all(word in sentence for word, sentence in zip(words, said, strict=True))
        assert metrics["alive"].all()
        agents.advance(state)


@pytest.fixture
def pair(fault, one_worker):
    """Two corridors in one worker, at their start, and what was said of them."""
    said: list[str] = []
    with pool.WorkerPool(Task(HOST).host(), [(0, 0), (0, 1)], [0, 0], tell=said.append) as both:
        assert both.begin(np.zeros(2, np.int32), {}) == 0

        def step(*actions):
            both.block.action[:] = actions
            both.step(0)
            both.wait()
            return both.block

        yield both, step, said


def test_what_was_done_before_a_death_stands(pair, fault):
    """The first corridor's end is reached and paid; its worker dies in the reset that follows, before the second has
    stepped. The first goes on with its next episode, the second's is lost."""
    _, step, said = pair
    before = step(1, 1).obs.copy()
    fault("reset kill")
    block = step(1, 0)
    assert len(said) == 1
    np.testing.assert_array_equal(block.reward, [1, 0])
    np.testing.assert_array_equal(block.terminated, [True, False])
    np.testing.assert_array_equal(block.truncated, [False, True])
    np.testing.assert_array_equal(block.lost, [False, True])
    np.testing.assert_array_equal(block.next_obs.argmax(1), [CELLS - 1, CELLS // 2 + 1])
    np.testing.assert_array_equal(block.next_obs[1], before[1])
    np.testing.assert_array_equal(block.episode, [1, 1])
    np.testing.assert_array_equal(block.obs.argmax(1), [CELLS // 2] * 2)
    block = step(1, 0)
    np.testing.assert_array_equal(block.obs.argmax(1), [CELLS // 2 + 1, CELLS // 2 - 1])
    assert not block.lost.any()
    assert not block.truncated.any()


def test_a_death_in_the_first_reset_loses_nothing(pair, fault):
    both, step, said = pair
    fault("reset kill")
    assert both.begin(np.zeros(2, np.int32), {}) == 0
    assert len(said) == 1
    assert not step(1, 0).truncated.any()


def test_an_episode_that_was_lost_does_not_count_as_one_that_ended(pair, fault):
    """A fault at the second step of every episode: each death loses an episode, and the third ends the run."""
    _, step, said = pair
    for _ in range(2):
        assert not step(1, 1).lost.any()
        fault("step raise")
        assert step(1, 1).lost.all()
    step(1, 1)
    fault("step raise")
    with pytest.raises(WorkerError, match="died 3 times in a row"):
        step(1, 1)
    assert len(said) == 2


def test_what_a_group_did_before_a_death_stands_when_the_other_is_told_to_step(fault, one_worker):
    """The worker dies in the reset after the first group's end, which is noticed only after the second group was told
    to step. The first group has stepped, and does not do so again."""
    said: list[str] = []
    with pool.WorkerPool(Task(HOST).host(), [(0, 0), (0, 1)], [0, 1], tell=said.append) as both:
        both.begin(np.zeros(2, np.int32), {})
        both.block.action[:] = 1
        for group in (0, 1):
            both.step(group)
            both.wait()
        fault("reset kill")
        both.step(0)
        both.workers[0].process.wait(60)
        both.step(1)
        both.wait()
        both.wait()
        block = both.block
        assert len(said) == 1
        np.testing.assert_array_equal(block.terminated, [True, False])
        np.testing.assert_array_equal(block.reward, [1, 0])
        np.testing.assert_array_equal(block.lost, [False, True])
        np.testing.assert_array_equal(block.episode, [1, 1])
        np.testing.assert_array_equal(block.obs.argmax(1), [CELLS // 2] * 2)


def test_signals_for_the_parent_are_not_for_its_workers(pair):
    both, step, said = pair
    for worker in both.workers:
        assert os.getpgid(worker.process.pid) != os.getpgid(0)
        os.kill(worker.process.pid, signal.SIGTERM)
    step(1, 0)
    assert not said


def test_environments_are_closed_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setenv("CORRIDOR_CLOSED", str(tmp_path))
    with pool.WorkerPool(Task(HOST).host(), [(0, n) for n in range(3)], [0] * 3):
        here = len(list(tmp_path.iterdir()))
    assert len(list(tmp_path.iterdir())) == here + 3


@pytest.mark.skipif(sys.platform != "linux", reason="memory is claimed at once on Linux alone")
def test_too_little_shared_memory_is_a_sentence(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(UserError, match=r"2 environments of .*Corridor-v0 need .* MiB of shared memory; .* has less"):
        pool.WorkerPool(Task(HOST).host(), [(0, 0), (0, 1)], [0, 0])


def test_a_workers_words_are_shown_as_they_are(capsys):
    """Not read as markup, in which a bracket may be a mistake."""
    with Progress(TINY, False, 0.0) as progress:
        progress.say("the floor gave way [/dev/floor]")
    assert "gave way [/dev/floor]" in capsys.readouterr().out


def test_a_worker_that_does_not_answer_is_told_of_and_waited_for(fault, one_worker, monkeypatch):
    monkeypatch.setattr(pool, "PATIENCE", 0.3)
    said = []
    with backend.open(replace(TINY, seeds=1), said.append) as agents:
        state, _ = agents.advance(agents.start())
        said.clear()
        fault("step wait")
        agents.advance(state)
    assert len(said) == 1
    assert said[0].endswith("has not answered for 0 s; waiting.")


@pytest.mark.parametrize("when", ["step", "reset"])
def test_a_worker_that_hangs_is_replaced(pair, fault, when):
    """For ever in a call, whatever signals it ignores: as if it had died there."""
    both, step, said = pair
    both.tell = lambda words: (said.append(words), setattr(both, "limit", 300.0))  # its successor has time to start
    step(1, 1)
    both.limit, before = 1.0, both.workers[0]
    fault(f"{when} hang")
    block = step(1, 0)
    assert before.process.returncode == -signal.SIGKILL
    assert len(said) == 1
    assert "died (killed after hanging for 1 s; ETD_WORKER_TIMEOUT sets this limit) and was replaced" in said[0]
    np.testing.assert_array_equal(block.lost, [when == "step", True])
    np.testing.assert_array_equal(block.truncated, block.lost)
    block = step(1, 0)
    assert not block.lost.any()
    np.testing.assert_array_equal(block.obs.argmax(1), [CELLS // 2 + 1, CELLS // 2 - 1])


def test_a_worker_that_hangs_before_it_is_ready_is_replaced(pair, fault):
    both, step, said = pair
    limits = iter([5.0, 300.0])  # time enough to start and to reach the fault on a busy machine
    both.tell = lambda words: (said.append(words), setattr(both, "limit", next(limits)))
    step(1, 1)
    fault("step kill", "build hang")
    assert step(1, 0).lost.all()
    assert len(said) == 2
    assert "killed by signal 9" in said[0]
    assert "after hanging for 5 s" in said[1]


def test_an_environment_whose_constructor_hangs_is_a_sentence(fault, monkeypatch):
    monkeypatch.setenv("ETD_WORKER_TIMEOUT", "1")
    env = Task(HOST).host()
    assert env.spec
    fault("build hang")
    with pytest.raises(UserError, match=r"could not be created in a worker process:\nkilled after hanging for 1 s"):
        pool.WorkerPool(env, [(0, 0)], [0])


def test_a_hung_worker_takes_what_it_started_with_it(pair, fault):
    both, step, _ = pair
    both.tell = lambda _: setattr(both, "limit", 300.0)
    both.limit = 1.0
    fault("step spawn and hang")
    folder = Path(os.environ["CORRIDOR_FAULTS"])
    step(1, 0)
    child = int((folder.parent / "child").read_text())
    deadline = time.monotonic() + 10
    while _alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(child)


def test_a_slow_worker_is_not_a_hung_one(fault, one_worker):
    """Five resets of half a second each are one answer; the limit is for a single call."""
    said: list[str] = []
    with pool.WorkerPool(Task(HOST).host(), [(0, n) for n in range(5)], [0] * 5, tell=said.append) as five:
        five.limit, before = 1.6, five.workers[0]
        fault(*["reset wait"] * 5)
        five.begin(np.zeros(5, np.int32), {})
        assert five.workers == [before]
    assert not said


@pytest.mark.parametrize("words", ["soon", "0", "-3", "nan"])
def test_an_impossible_timeout_is_said(monkeypatch, words):
    monkeypatch.setenv("ETD_WORKER_TIMEOUT", words)
    with pytest.raises(UserError, match=f"ETD_WORKER_TIMEOUT is '{words}'; it must be a number of seconds"):
        pool.WorkerPool(Task(HOST).host(), [(0, 0)], [0])


@pytest.mark.slow
def test_a_worker_that_hangs_in_an_evaluation_is_replaced(fault, monkeypatch):
    monkeypatch.setenv("ETD_WORKER_TIMEOUT", "8")
    said: list[str] = []
    with backend.open(replace(TINY, seeds=1), said.append) as agents:
        state, _ = agents.advance(agents.start())
        agents.close()
        expected = agents.evaluate(state, 0, 8)
        fault("step hang")
        outcome = agents.evaluate(state, 0, 8)
        fault("reset hang")
        film = agents.film(state, 0, 4, False, range)
    assert outcome.total.shape == expected.total.shape == (8,)
    assert film.pictures
    assert ["hanging for 8 s" in words for words in said] == [True, True]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_a_run_survives_a_hundred_deaths(fault, one_worker, tmp_path):
    """Spread over the run, at every third episode of a worker; it ends as usual and leaves nothing behind."""
    fault(*["third kill"] * 100)
    said, handles = [], []
    with backend.open(replace(TINY, seeds=1, num_envs=2), said.append) as agents:
        state = agents.start()
        while list((tmp_path / "faults").iterdir()):
            state, metrics = agents.advance(state)
            handles.append(_open_files())
        assert agents.collector.pool.losses == 100
        workers = [worker.process.pid for worker in agents.collector.pool.workers]
    assert metrics["alive"].all()
    assert max(map(len, handles)) == len(handles[0])
    assert [words.partition("truncated.")[2] for words in said] == [
        *[""] * 9,
        *[f" {10 * n} have been replaced so far." for n in range(1, 11)],
    ]
    assert any("/dev/shm" in name for name in handles[0])
    gc.collect()  # the arrays keep the memory open
    assert not any("/dev/shm" in name for name in _open_files())
    assert not any(_alive(pid) for pid in workers)


def _open_files():
    """What this process has open, by the names of its handles."""
    links = [entry for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    return [str(link.readlink()) for link in links]


def test_three_deaths_in_a_row_end_the_run_after_a_checkpoint(fault, one_worker, tmp_path):
    run = session.train(experiment=replace(TINY, steps=40), out=tmp_path / "run", quiet=True)
    fault("always raise")
    with pytest.raises(WorkerError, match="died 3 times in a row") as caught:
        session.resume(run.path, steps=120, quiet=True)
    assert "Traceback" in str(caught.value)
    assert "the floor gave way" in str(caught.value)
    assert run.checkpoints()[0].stem == "0000001"
    (tmp_path / "faults" / "0").unlink()
    assert len(session.resume(run.path, quiet=True).metrics()["step"]) == 6


def test_workers_do_not_outlive_a_killed_parent(tmp_path):
    """kill -9 on the parent leaves no process behind, also none in the midst of a long step."""
    code = f"""
import sys, time
import tests.corridor
from etd.envs.host.env import HostEnv
from etd.envs.host.pool import WorkerPool
pool = WorkerPool(HostEnv({HOST!r}), [(0, n) for n in range(4)], [0] * 4)
print(*[worker.process.pid for worker in pool.workers], flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert pids
        parent.kill()
    deadline = time.monotonic() + 10
    while any(_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_alive(pid) for pid in pids)


def _alive(pid):
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_the_normaliser_is_gymnasiums(rng):
    from gymnasium.wrappers.utils import RunningMeanStd

    ours = Normaliser.start(2, 3)
    theirs = [RunningMeanStd(shape=(3,)) for _ in range(2)]
    for t in range(50):
        obs = rng.normal(2, 5, (2, 3)).astype(np.float32)
        rows = np.array([0, 1]) if t % 3 else np.array([1])
        ours.enter(obs[rows], rows)
        for row in rows:
            theirs[row].update(obs[row][None])
        expected = [(obs[row] - theirs[row].mean) / np.sqrt(theirs[row].var + 1e-8) for row in (0, 1)]
        np.testing.assert_allclose(ours(obs), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_normalised_training_counts_every_observation_once():
    experiment = replace(TINY, env=Task(HOST, normalise=True), seeds=1)
    with backend.open(experiment) as agents:
        state, _ = agents.advance(agents.start())
        kept = state.envs.normaliser
        done = int(np.asarray(state.envs.episode).sum())
    assert float(kept.seen.sum()) == pytest.approx(4 + 40 + done, abs=0.01)


def test_clear_refusals():
    with pytest.raises(UserError, match="lives on the host"):
        Task(HOST).make()
    with pytest.raises(UserError, match="noise is added on the device"):
        Task(HOST, noise=0.1).host()
    with pytest.raises(UserError, match="works only for host environments"):
        Task(normalise=True).make()
