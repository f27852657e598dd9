"""The trained agent by itself: from its run and from an exported folder, in loops of our own and of Farama's."""

from __future__ import annotations

import hashlib
import json
import math
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy
from PIL import Image

import etd
from etd.agent.ppo import PPO
from etd.bonuses import NoBonus, make
from etd.cli import main
from etd.core.errors import UserError
from etd.envs import Task
from etd.envs.host.env import Normaliser
from etd.lab.report.write import write as report
from etd.lab.runs import evaluate as evaluation
from etd.lab.runs import export, session
from etd.lab.runs.agent import Agent
from etd.lab.runs.store import Run
from etd.training.experiment import Experiment

EPISODES = 6
posix = pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")


@pytest.fixture(scope="module")
def loaded(trained: Path) -> session.Trained:
    return session.load(trained)


@pytest.fixture(scope="module")
def exported(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seed 4 of the run, by the command line, with its film."""
    folder = tmp_path_factory.mktemp("agents") / "tiny"
    main(["export", str(trained), "--out", str(folder), "--seed", "4"])
    return folder


@pytest.fixture
def agent(exported: Path) -> Agent:
    return Agent.load(exported)


@pytest.fixture(scope="module")
def seen() -> np.ndarray:
    """[5, ...] observations that could be."""
    return np.random.default_rng(0).integers(0, 4, (5, 7, 7, 3), np.uint8)


# Acting ----------------------------------------------------------------------------------------------------------


def test_an_exported_agent_acts_as_the_runs_own_to_the_last_bit(loaded, agent: Agent, seen: np.ndarray) -> None:
    own, other = loaded.agent(seed=4), loaded.agent(seed=3)
    memories: list[Any] = [None, None]
    for step in range(4):
        (one, memories[0]), (two, memories[1]) = own.act(seen, memories[0]), agent.act(seen, memories[1])
        np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(*memories)
        np.testing.assert_array_equal(own.value(seen, memories[0]), agent.value(seen, memories[1]))
        for memory in memories:
            memory[step] = 0
    np.testing.assert_array_equal(own.distance(seen, seen), agent.distance(seen, seen))
    assert (own.value(seen) != other.value(seen)).all()


def test_an_agent_acts_as_its_policy_does_in_training(loaded, quick, agent: Agent, seen: np.ndarray) -> None:
    policy = jax.tree.map(lambda leaf: leaf[1], loaded.state.learner.policy)
    out = quick(lambda policy, obs: policy.net()(obs, np.zeros((5, 8), np.float32)))(policy, seen)
    action, memory = agent.act(seen, greedy=True)
    np.testing.assert_array_equal(action, np.asarray(out.policy.logits).argmax(-1))
    np.testing.assert_allclose(memory, out.hidden, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(agent.value(seen), out.value, rtol=1e-4, atol=1e-6)


def test_one_observation_is_a_batch_of_one(agent: Agent, seen: np.ndarray) -> None:
    _, memory = agent.act(seen)
    action, after = agent.act(seen, memory, greedy=True)
    assert action.shape == (5,)
    assert after.shape == memory.shape == (5, 8)
    alone, then = agent.act(seen[2], memory[2], greedy=True)
    assert alone == action[2]
    assert np.issubdtype(alone.dtype, np.integer)
    np.testing.assert_allclose(then, after[2], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(agent.value(seen[2], memory[2]), agent.value(seen, memory)[2], rtol=1e-4, atol=1e-6)


def test_a_row_of_zeros_begins_an_episode(agent: Agent, seen: np.ndarray) -> None:
    _, memory = agent.act(seen)
    memory[3] = 0
    _, after = agent.act(seen, memory)
    _, fresh = agent.act(seen)
    np.testing.assert_array_equal(after[3], fresh[3])
    assert (after[2] != fresh[2]).any()


def test_samples_repeat_and_greedy_ones_are_the_most_likely(agent: Agent, seen: np.ndarray) -> None:
    many = np.broadcast_to(seen[:1], (500, 7, 7, 3))
    draws = []
    for seed in (7, 7, 8):
        agent.rng = np.random.default_rng(seed)
        draws.append(agent.act(many)[0])
    np.testing.assert_array_equal(draws[0], draws[1])
    assert (draws[0] != draws[2]).any()
    likely = agent.act(many, greedy=True)[0]
    assert len(set(likely)) == 1
    # Hardly trained, the policy is almost uniform over its seven actions.
    assert np.bincount(draws[0], minlength=7).min() > 40


def test_distances_are_between_embeddings(quick, agent: Agent, seen: np.ndarray) -> None:
    embedded, between = agent.embed(seen), agent.distance(seen, seen)
    assert embedded.shape == (5, 8)
    np.testing.assert_allclose(
        between, quick(agent.experiment.bonus.distance)(embedded, embedded), rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(agent.embed(seen[1]), embedded[1], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(agent.distance(seen[1], seen), between[1], rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(agent.distance(seen, seen[1]), between[:, 1], rtol=1e-3, atol=1e-5)
    assert agent.distance(seen[1], seen[2]).shape == ()


def test_mistakes_get_sentences(loaded, agent: Agent, seen: np.ndarray, trained: Path) -> None:
    for call, says in [
        (lambda: loaded.agent(seed=0), "has no seed 0; it has seeds 3 to 4"),
        (lambda: loaded.agent(seed="3"), "has no seed '3'"),
        (lambda: Agent.load(trained), "is a run, not an exported agent"),
        (lambda: agent.act(seen[:, :3]), r"shape \[5, 3, 7, 3\].* has observations \[7, 7, 3\], or \[B, 7, 7, 3\]"),
        (lambda: agent.act(seen[:0]), r"shape \[0, 7, 7, 3\]"),
        (lambda: agent.act(seen.astype(float)), "type float64.* of uint8"),
        (lambda: agent.act({"pixels": seen}), "without the part 'image'"),
        (lambda: agent.act(None), r"shape \[\]"),
        (lambda: agent.act([[1, 2], [3]]), "obs cannot be read as an array"),
        (lambda: agent.act(seen, [[1, 2], [3]]), "memory cannot be read as an array"),
        (lambda: agent.act(seen, np.zeros(8)), r"memory is float64\[8\].* float32\[5, 8\]"),
        (lambda: agent.act(seen[0], np.zeros((1, 8))), r"float32\[8\]"),
        (lambda: agent.act(seen[0], ["x"] * 8), "memory is <U1"),
    ]:
        with pytest.raises(UserError, match=says):
            call()


# In environments -------------------------------------------------------------------------------------------------


def test_the_same_level_is_played_alike_in_farama_s_minigrid_and_in_ours(loaded, exported: Path) -> None:
    """Theirs is given Farama's dict, ours the image; the level is generated by Farama."""
    pytest.importorskip("minigrid")
    import etd.envs.minigrid.gym as face
    from etd.lab.bench import parity

    name = "MiniGrid-DoorKey-5x5-v0"
    theirs, ours = parity.farama(name), face.MiniGridEnv(name)
    obs, _ = theirs.reset(seed=1)
    ours.reset(seed=0)
    ours.world = jax.device_put(parity.translate(theirs, 5))
    image = np.asarray(jax.jit(ours.env.observe)(ours.world))
    one, two = loaded.agent(seed=4), Agent.load(exported)
    first, second = None, None
    assert set(obs) == {"image", "direction", "mission"}
    moves = set()
    for _ in range(60):
        action, first = one.act(obs, first)
        again, second = two.act(image, second)
        assert action == again
        moves.add(int(action))
        obs, *gave, _ = theirs.step(action)
        image, *got, _ = ours.step(again)
        np.testing.assert_array_equal(obs["image"], image)
        assert gave[1:] == got[1:]
        assert gave[0] == pytest.approx(got[0])
        if any(gave[1:]):
            break
    assert len(moves) > 3


def stored(experiment: Experiment, weights: export.Weights, folder: Path) -> Path:
    """An export of these weights, as of a run that has only begun."""
    run = Run.create(folder / "run", experiment)
    return export.write(run, export.playable(experiment, weights), folder / "agent")


def filled(experiment: Experiment, fill, normaliser: Normaliser | None = None) -> export.Weights:
    def init(key):
        spec = experiment.env.spec
        return experiment.ppo.init(key, spec), experiment.bonus.init(key, spec, experiment.num_envs)

    return export._lean(*fill(init), normaliser)


def test_observations_are_normalised_and_actions_are_within_the_box(fill, tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    task = Task("gymnasium:Pendulum-v1", normalise=True)
    experiment = Experiment(task, NoBonus(), PPO(minibatch=8, features=8, latent=8), num_envs=2, rollout_steps=8)
    rng = np.random.default_rng(0)
    known = Normaliser(*(rng.uniform(1, 2, shape).astype(np.float32) for shape in ((2,), (2, 3), (2, 3))))
    weights = filled(experiment, fill, known)
    agent = Agent.load(stored(experiment, weights, tmp_path))
    plain = Agent(experiment, weights._replace(normaliser=None))
    obs = rng.normal(3, 2, (64, 3)).astype(np.float32)
    mean = np.average(known.mean, 0, known.seen)
    var = np.average(known.var + np.square(known.mean - mean), 0, known.seen)
    as_seen = (obs - mean) / np.sqrt(var + 1e-8)
    np.testing.assert_allclose(agent.act(obs, greedy=True)[0], plain.act(as_seen, greedy=True)[0], rtol=1e-4, atol=1e-5)
    assert not np.allclose(agent.act(obs, greedy=True)[0], plain.act(obs, greedy=True)[0], atol=1e-3)
    agent.rng = np.random.default_rng(0)
    action, _ = agent.act(obs)
    assert action.shape == (64, 1)
    assert action.dtype == np.float32
    assert np.abs(action).max() <= 2
    assert np.abs(action).max() > np.abs(agent.act(obs, greedy=True)[0]).max()
    with pytest.raises(UserError, match="not finite"):
        agent.act(np.full(3, np.nan, np.float32))
    for method in ("embed", "distance"):
        with pytest.raises(UserError, match=r"has no embedding|learns no distance"):
            getattr(agent, method)(*[obs] * (1 + (method == "distance")))


@pytest.mark.parametrize("bonus", ["count", "ngu", "deir", "etd + 0.5*rnd"])
def test_every_bonus_is_exported_whole(bonus: str, fill, tmp_path: Path) -> None:
    experiment = Experiment("MiniGrid-Empty-5x5-v0", make(bonus), num_envs=2, rollout_steps=256)
    weights = filled(experiment, fill)
    again = session.load(stored(experiment, weights, tmp_path)).state
    assert jax.tree.structure(export.weights(again, 0)) == jax.tree.structure(weights)
    jax.tree.map(np.testing.assert_array_equal, export.weights(again, 0), weights)


# The folder ------------------------------------------------------------------------------------------------------


def agrees(recorded: dict[str, float], found: float, episodes: int) -> bool:
    """Whether a success rate found in fresh episodes is within chance (four standard errors) of the recorded one."""
    last = min(recorded["episodes"], 100)
    whole = (recorded["success"] * last + found * episodes + 1) / (last + episodes + 2)  # as if one each were added
    return abs(recorded["success"] - found) <= 4 * math.sqrt(whole * (1 - whole) * (1 / last + 1 / episodes))


@pytest.mark.slow
def test_it_is_evaluated_and_filmed_like_the_run(trained: Path, exported: Path, capsys, tmp_path: Path) -> None:
    of_run, of_agent = (evaluation.evaluate(path, EPISODES) for path in (trained, exported))
    assert of_agent["seeds"] == of_run["seeds"][1:]
    main(["evaluate", str(exported), "--episodes", str(EPISODES)])
    assert "6 fresh episodes per seed" in capsys.readouterr().out
    main(["watch", str(exported), "--out", str(tmp_path / "film.gif")])
    assert (tmp_path / "film.gif").read_bytes() == (exported / "episode.gif").read_bytes()
    with Image.open(exported / "episode.gif") as film:
        assert film.n_frames > 1
    recorded = json.loads((exported / "agent.json").read_text())["exported"]["results"][1]
    assert agrees(recorded, of_agent["overall"]["success"], EPISODES)
    assert not agrees({"success": 0.9, "episodes": 2000}, 0.5, 100)
    assert agrees({"success": 0.9, "episodes": 2000}, 0.8, 100)


@pytest.mark.slow
def test_one_of_the_host_is_evaluated_like_the_run(tmp_path: Path) -> None:
    """With the normaliser of its own seed."""
    task = Task("gymnasium:Pendulum-v1", normalise=True)
    ppo = PPO(minibatch=8, epochs=1, features=8, latent=8)
    experiment = Experiment(task, NoBonus(), ppo, num_envs=2, rollout_steps=128, steps=512, seeds=2)
    session.train(experiment=experiment, out=tmp_path / "run", quiet=True)
    folder = export.write(*session.load(tmp_path / "run"), tmp_path / "agent", seed=1)
    of_run, of_agent = (evaluation.evaluate(path, 3) for path in (tmp_path / "run", folder))
    assert of_agent["seeds"] == of_run["seeds"][1:]


def test_its_card_has_every_seed_and_says_which_this_is(trained: Path, exported: Path) -> None:
    text = (exported / "README.md").read_text()
    metrics = Run.open(trained).metrics()
    last = {int(seed): value for seed, value in zip(metrics["seed"], metrics["return"], strict=True)}
    assert f"| 3 | 320 | {metrics['episodes'][-2]:.0f} | {last[3]:.3f} |" in text
    assert f"| **4** | 320 | {metrics['episodes'][-1]:.0f} | {last[4]:.3f} |" in text
    for words in ("seed 4", "etd train --env MiniGrid-Empty-5x5-v0 --bonus etd", "--seeds 2", f"jax {jax.__version__}"):
        assert words in text
    for words in ("license: apache-2.0", "episode.gif", "etd.Agent.load"):
        assert words in text
    assert sorted(file.name for file in exported.iterdir()) == [
        *("README.md", "agent.json", "agent.safetensors", "episode.gif")
    ]


def test_the_first_seed_is_exported_unless_one_is_named(loaded, tmp_path: Path) -> None:
    folder = export.write(*loaded, tmp_path / "agent")
    assert Agent.load(folder).experiment.seed == 3
    assert "episode.gif" not in (folder / "README.md").read_text()
    assert session.load(folder).agent().experiment.seed == 3


def refused(capsys, *words: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    assert stop.value.code == 2
    return capsys.readouterr().err


def test_what_is_not_meant_for_it_is_refused(loaded, trained: Path, exported: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "README.md").write_text("mine")
    assert "is not empty" in refused(capsys, "export", str(trained), "--out", str(tmp_path))
    assert (tmp_path / "README.md").read_text() == "mine"
    assert "has no seed 9" in refused(capsys, "export", str(trained), "--out", str(tmp_path / "a"), "--seed", "9")
    assert "already" in refused(capsys, "export", str(exported), "--out", str(tmp_path / "a"))
    assert not (tmp_path / "a").exists()
    assert "cannot be trained further" in refused(capsys, "resume", str(exported))
    with pytest.raises(UserError, match="without metrics"):
        report([exported], tmp_path / "page.html")
    kept = Run.open(trained).keep(tmp_path / "kept")
    shutil.copytree(exported, kept.path / "agent")
    with pytest.raises(UserError, match=r"Its agent is in .*kept.agent"):
        etd.evaluate(kept.path)


# Damage ----------------------------------------------------------------------------------------------------------


def resealed(folder: Path, content: bytes) -> None:
    """Weights with the right checksum, as somebody who means harm would write them."""
    (folder / "agent.safetensors").write_bytes(content)
    edited(folder, "exported.sha256", hashlib.sha256(content).hexdigest())


def edited(folder: Path, path: str, value: Any) -> None:
    record = part = json.loads((folder / "agent.json").read_text())
    *way, last = path.split(".")
    for name in way:
        part = part[name]
    part[last] = value
    (folder / "agent.json").write_text(json.dumps(record))


def arrays(folder: Path, change: Callable[[dict[str, np.ndarray]], Any]) -> None:
    found = safetensors.numpy.load((folder / "agent.safetensors").read_bytes())
    change(found)
    resealed(folder, safetensors.numpy.save(found))


def flipped(folder: Path) -> None:
    content = bytearray((folder / "agent.safetensors").read_bytes())
    content[-5] ^= 1
    (folder / "agent.safetensors").write_bytes(content)


def pipe(folder: Path) -> None:
    (folder / "agent.safetensors").unlink()
    os.mkfifo(folder / "agent.safetensors")


def header(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


class Harm:
    def __reduce__(self) -> Any:
        return os.mkdir, ("harmed",)


TERABYTES = b'{"policy": {"dtype": "F32", "shape": [1000000, 1000000], "data_offsets": [0, 4000000000000]}}'
DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no weights": (lambda f: (f / "agent.safetensors").unlink(), "No such file"),
    "empty": (lambda f: (f / "agent.safetensors").write_bytes(b""), "not what agent.json says"),
    "a bit": (flipped, "not what agent.json says it is. Restore it from a copy, or export the agent again"),
    "cut": (lambda f: os.truncate(f / "agent.safetensors", 1000), "not what agent.json says"),
    "large": (lambda f: os.truncate(f / "agent.safetensors", 10**10), "more than .* bytes"),
    "other weights": (lambda f: shutil.copy(f / "README.md", f / "agent.safetensors"), "not what agent.json says"),
    "no checksum": (lambda f: edited(f, "exported", {}), "not what agent.json says"),
    "no facts": (lambda f: edited(f, "exported", "x"), "not what agent.json says"),
    "a pickle": (lambda f: resealed(f, pickle.dumps(Harm())), "cannot be used"),
    "nothing": (lambda f: resealed(f, b""), "cannot be used"),
    "a header for ever": (lambda f: resealed(f, b"\xff" * 64), "cannot be used"),
    "terabytes": (lambda f: resealed(f, header(TERABYTES)), "cannot be used"),
    "deep": (lambda f: resealed(f, header(b"[" * 90_000)), "cannot be used"),
    "fewer": (lambda f: arrays(f, lambda a: a.pop(min(a))), "it has no bonus/"),
    "more": (lambda f: arrays(f, lambda a: a.update(more=np.zeros(2))), "it has 'more', which the code does not"),
    "shape": (lambda f: arrays(f, lambda a: a.update({max(a): np.zeros(3, np.float32)})), r"F32\[3\] in the file"),
    "type": (lambda f: arrays(f, lambda a: a.update({max(a): a[max(a)].astype(np.float64)})), r"F64\[.* and F32\["),
    "not a number": (lambda f: arrays(f, lambda a: a[max(a)].fill(np.nan)), "values that are not finite"),
    "cut record": (lambda f: os.truncate(f / "agent.json", 100), "agent.json cannot be used"),
    "newer": (lambda f: edited(f, "format", 99), "written by a newer etd"),
    "unknown field": (lambda f: edited(f, "experiment.ppo.depth", 3), "no field 'ppo.depth'"),
    "seeds": (lambda f: edited(f, "experiment.seeds", 3), "an agent has one seed, not 3"),
    "another network": (lambda f: edited(f, "experiment.ppo.latent", 16), r"F32\[8.* in the file and F32\[16"),
    "a huge network": (lambda f: edited(f, "experiment.ppo.latent", 2**31 - 1), "GiB of memory; there are"),
    "a module": (lambda f: edited(f, "experiment.bonus", {"class": "antigravity:Bonus"}), "--import antigravity"),
    "a function": (lambda f: edited(f, "experiment.bonus", {"class": "os:system"}), "os"),
}


@pytest.mark.parametrize("kind", [*DAMAGE, pytest.param("a pipe", marks=posix)])
def test_a_damaged_or_hostile_folder_is_refused(
    kind: str, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = shutil.copytree(exported, tmp_path / "agent")
    damage, says = (pipe, "pipe or device") if kind == "a pipe" else DAMAGE[kind]
    damage(folder)
    with pytest.raises(UserError, match=says) as refusal:
        Agent.load(folder)
    assert len(str(refusal.value)) < 600
    assert not (tmp_path / "harmed").exists()
