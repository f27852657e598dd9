"""An exported agent: a folder that plays without the run.

    agent.safetensors   the weights of the policy and of the bonus's model
    agent.json          the experiment, the versions, the device, and how training went
    README.md           the same for people
    episode.gif         a film, if one was asked for

It may be damaged or come from somebody else. Whatever its files hold, reading it ends in an agent or in a UserError:
nothing in them is executed, and no array is allocated that the experiment does not ask for and the file does not hold.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from etd.bonuses import BonusState
from etd.core import files
from etd.core.errors import UserError
from etd.core.moments import Moments
from etd.core.version import __version__
from etd.envs.host.env import Normaliser, Running
from etd.lab.runs.command import command
from etd.lab.runs.record import EXPORT, broken
from etd.lab.runs.store import Run
from etd.nets.model import Learner
from etd.training import checkpoint, ledger, memory
from etd.training.collect import first_hidden
from etd.training.config import bonus_name, sources, to_dict, unwritable
from etd.training.experiment import Experiment
from etd.training.learn import LearnerState, TrainState
from etd.training.migrate import FORMAT

WEIGHTS = "agent.safetensors"
FILM = "episode.gif"
HEADER = 1_000_000
"""Bytes of the weights' file beside the arrays; their names take a few thousand."""
COPIES = 3
"""Of the weights, at once in memory: the file's, the library's and the device's."""
RESULTS = ("step", "episodes", "return", "length", "success", "score")
"""The metrics at the end of training that are kept, as far as there are."""


class Weights(NamedTuple):
    """What an agent needs to act, and its bonus to score; of one seed."""

    policy: Learner
    """without the state of its optimiser"""
    bonus: BonusState
    """likewise, and without the memory of its episodes"""
    normaliser: Normaliser | None
    """[N, ...] of the training environments, if observations are normalised"""


def single(run: Run, seed: int | None) -> tuple[Experiment, int]:
    """A run's experiment with only this seed, or the first one, and its place among them."""
    index = 0 if seed is None else run.index(seed)
    return replace(run.experiment, seed=run.experiment.seed + index, seeds=1), index


def weights(state: TrainState, index: int) -> Weights:
    """Those of the seed at ``index``, of a state with leaves [S, ...]."""
    normaliser = state.envs.normaliser if isinstance(state.envs, Running) else None
    learner = state.learner
    return jax.tree.map(lambda leaf: leaf[index], _lean(learner.policy, learner.bonus, normaliser))


def _lean(policy: Learner, bonus: BonusState, normaliser: Normaliser | None) -> Weights:
    policy, bonus = jax.tree.map(
        lambda part: replace(part, opt=()) if isinstance(part, Learner) else part,
        (policy, bonus._replace(memory=())),
        is_leaf=lambda part: isinstance(part, Learner),
    )
    return Weights(policy, bonus, normaliser)


def playable(experiment: Experiment, weights: Weights) -> TrainState:
    """A state with leaves [1, ...] that can be evaluated and filmed as the run's could, but not trained."""
    spec, on_host = experiment.env.spec, experiment.env.host()
    envs = () if on_host is None else on_host.begin(1)._replace(normaliser=weights.normaliser)
    ledgers = ledger.start(1, spec)
    learner = LearnerState(weights.policy, weights.bonus, Moments.start(), Moments.start((1,)), ledgers)
    key = jax.random.key(experiment.seed)
    state = TrainState(
        key, jnp.zeros((), jnp.int32), jnp.ones((), bool), learner, envs, first_hidden(experiment.ppo, 1)
    )
    return jax.tree.map(lambda leaf: leaf[None], state)


# Reading ---------------------------------------------------------------------------------------------------------


def read(run: Run) -> Weights:
    """The weights of an exported agent, whose experiment has been checked."""
    file = run.path / WEIGHTS
    if run.experiment.seeds != 1:
        raise broken(run.path / EXPORT, f"an agent has one seed, not {run.experiment.seeds}")
    like = _shapes(run.experiment)
    wanted = checkpoint.shapes(like)
    most = HEADER + sum(math.prod(one.shape) * one.dtype.itemsize for one in wanted.values())
    memory.refuse_arrays(str(run.path), COPIES, most, "Load it on a larger machine.")
    try:
        content = files.read(file, most)
    except OSError as error:
        raise broken(file, files.reason(error)) from error
    if hashlib.sha256(content).hexdigest() != _said(run).get("sha256"):
        raise broken(file, f"it is not what {EXPORT} says it is")
    try:
        found = dict(safetensors.deserialize(content))
    except Exception as error:  # whatever the library stumbles over
        raise broken(file, files.reason(error)) from error
    if lacking := next((name for name in wanted if name not in found), None):
        raise broken(file, f"it has no {lacking}")
    if more := next((name for name in found if name not in wanted), None):
        raise broken(file, f"it has {more!r}, which the code does not")
    return checkpoint.restored(like, [_array(file, name, found[name], one) for name, one in wanted.items()])


def _array(file: Path, name: str, found: dict[str, Any], wanted: Any) -> np.ndarray:
    has, needs = (found["dtype"], list(found["shape"])), (_TYPES[wanted.dtype.name], list(wanted.shape))
    if has != needs:
        raise broken(file, f"{name} is {has[0]}{has[1]} in the file and {needs[0]}{needs[1]} in the code")
    values = np.frombuffer(found["data"], wanted.dtype).reshape(wanted.shape)
    if not np.isfinite(values).all():
        raise broken(file, f"{name} has values that are not finite")
    return values


_TYPES = {"bool": "BOOL", "float32": "F32"}
_TYPES |= {f"{kind}{size}": f"{kind[0].upper()}{size}" for kind in ("int", "uint") for size in (8, 16, 32)}
"""The format's names of the types that JAX has."""


def _shapes(experiment: Experiment) -> Weights:
    """Shapes and types, without computing anything."""
    spec, num_envs, normaliser = experiment.env.spec, experiment.num_envs, None
    if experiment.env.normalise:
        sizes = (num_envs,), (num_envs, spec.obs_size), (num_envs, spec.obs_size)
        normaliser = Normaliser(*(jax.ShapeDtypeStruct(size, np.float32) for size in sizes))  # type: ignore[arg-type]

    def fresh() -> tuple[Learner, BonusState]:
        key = jax.random.key(0)
        return experiment.ppo.init(key, spec), experiment.bonus.init(key, spec, num_envs)

    policy, bonus = jax.eval_shape(fresh)
    return _lean(policy, bonus, normaliser)


def _said(run: Run) -> dict[str, Any]:
    said = run.record.get("exported")
    return said if isinstance(said, dict) else {}


# Writing ---------------------------------------------------------------------------------------------------------


def refuse_folder(folder: Path) -> None:
    """A UserError if nothing can be exported to ``folder``."""
    files.refuse_unwritable(folder, folder=True)
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty. Choose another --out, or remove what is there.")


def write(run: Run, state: TrainState, folder: Path, seed: int | None = None, film: bool = False) -> Path:
    """Export the agent of a seed, of the first if omitted, to a new folder. ``film`` only mentions one; who makes it
    comes later."""
    refuse_folder(folder)
    experiment = run.experiment
    if run.exported:
        raise UserError(f"{run.path} is an exported agent already. Copy the folder.")
    if lost := unwritable(experiment):
        raise UserError(
            f"{run.path} cannot be exported: {lost[0]}. Define it in an importable module, and train again."
        )
    alone, index = single(run, seed)
    arrays = {name: np.array(one, order="C") for name, one in checkpoint.arrays(weights(state, index)).items()}
    content = safetensors.numpy.save(arrays)
    said: dict[str, Any] = {
        "sha256": hashlib.sha256(content).hexdigest(),
        "etd": __version__,
        "seed": alone.seed,
        "command": command(experiment, **run.asked),
        "results": results(run),
    }
    record: dict[str, Any] = {"format": FORMAT, "experiment": to_dict(alone), "sources": sources(alone)}
    record |= {name: run.record[name] for name in ("versions", "device") if name in run.record}
    record["exported"] = said
    files.write(folder / WEIGHTS, content)
    files.write(folder / "README.md", card(Run(folder, record, alone, exported=True), film))
    files.write(folder / EXPORT, json.dumps(record, indent=2) + "\n")  # last: without it there is no agent
    return folder


def results(run: Run) -> list[dict[str, float]]:
    """How training ended, for every seed."""
    table = run.metrics()
    found = []
    for seed in run.seeds:
        rows = np.flatnonzero(table["seed"] == seed) if table else np.zeros(0, int)
        if len(rows):
            last = {name: float(table[name][rows[-1]]) for name in RESULTS if name in table}
            found.append({"seed": seed, **{name: value for name, value in last.items() if math.isfinite(value)}})
    return found


def card(agent: Run, film: bool) -> str:
    """The README of an exported agent, for people."""
    experiment, said = agent.experiment, agent.record["exported"]
    shown = [name for name in RESULTS if any(name in row for row in said["results"])]
    how = {"step": ",.0f", "episodes": ",.0f", "success": ".1%", "return": ".3f", "length": ".1f", "score": ".2f"}
    lines = [
        "".join(f"| {cell} " for cell in ["seed", *shown]) + "|",
        "|---:" * (1 + len(shown)) + "|",
    ]
    for row in said["results"]:
        cells = [format(row[name], how[name]) if name in row else "" for name in shown]
        number = f"**{row['seed']}**" if row["seed"] == said["seed"] else str(row["seed"])
        lines.append("".join(f"| {cell} " for cell in [number, *cells]) + "|")
    versions = ", ".join(f"{name} {version}" for name, version in agent.record.get("versions", {}).items())
    device = agent.record.get("device", {}).get("kind", "an unknown device")
    return f"""---
license: apache-2.0
library_name: etd
tags: [reinforcement-learning, exploration]
---

# {experiment.env.id}, {bonus_name(experiment.bonus)}, seed {said["seed"]}

An agent for {experiment.env.id}, trained by PPO with the exploration bonus {bonus_name(experiment.bonus)}.
{f"{chr(10)}![One of its episodes]({FILM}){chr(10)}" if film else ""}
Means over the last {ledger.WINDOW} episodes of training. All seeds that were trained together are listed; this agent is
seed {said["seed"]}.

{chr(10).join(lines)}

Trained on {device} with {versions}, by

    {said["command"]}

Every setting is in `{EXPORT}`.

```python
import etd

agent = etd.Agent.load("FOLDER")
action, memory = agent.act(obs, None)  # None where an episode begins; then the memory that came with the last action
```

`etd evaluate FOLDER` plays fresh episodes, `etd watch FOLDER` films one. Licence: Apache-2.0.
"""
