"""Which earlier state is nearest, by the learned distance, and what that makes of ETD's bonus. Writes nearest.json.

python results/dmc/nearest.py RUN [RUN ...]

RUN is a directory of `etd train --bonus etd` with its checkpoint. Each of its agents plays EPISODES fresh episodes,
whose states are all embedded with the weights at the end.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import spearmanr

from etd.core.keys import named
from etd.envs.host.env import HostEnv
from etd.lab.report.curves import by_seed
from etd.lab.runs import session
from etd.lab.runs.store import Run
from etd.training import compiled, host_play
from etd.training.learn import TrainState

EPISODES = 4
NEAR = 5
"""steps ago that count as just before"""


def episodes(run: Run, state: TrainState, index: int) -> Iterator[np.ndarray]:
    """The observations [T+1, ...] of each episode."""
    env = run.experiment.env.host()
    if isinstance(env, HostEnv):
        normaliser = jax.device_get(jax.tree.map(lambda leaf: leaf[index], state.envs.normaliser))
        for one in host_play.play(run.experiment, env, state, index, EPISODES):
            _, obs, _ = host_play.replay(env, one, normaliser, (), print)
            yield np.asarray(obs)[: len(one.rewards) + 1]
    else:
        play = compiled.make_player(run.experiment, EPISODES, greedy=False)
        played = play(state, index, named(state.key[index], "nearest"))
        for episode, length in enumerate(np.asarray(played.outcome.length)):
            rollout = jax.tree.map(lambda leaf, e=episode: np.asarray(leaf[:, e]), played.rollout)
            yield np.concatenate([rollout.obs[:1], rollout.next_obs[:length]])


def look(distance: np.ndarray) -> dict[str, float]:
    """An episode's numbers from the distances [T+1, T+1] between its states, from row to column."""
    times = range(1, len(distance))
    bonus = np.array([distance[:time, time].min() for time in times])
    before = np.array([distance[time - 1, time] for time in times])
    just_before = np.array([distance[max(0, time - NEAR) : time, time].min() for time in times])
    fifth = max(1, len(bonus) // 5)
    return {
        "previous": float((before <= bonus).mean()),
        "just before": float((just_before <= bonus).mean()),
        "rank correlation": float(spearmanr(bonus, before)[0]),
        "bonus, first fifth": float(bonus[:fifth].mean()),
        "bonus, last fifth": float(bonus[-fifth:].mean()),
    }


def learned(path: str) -> dict:
    """The means over a seed's episodes, for each seed."""
    run, state = session.load(path)
    rows = []
    for index in range(run.experiment.seeds):
        net = jax.tree.map(lambda leaf, i=index: leaf[i], state.learner.bonus.learner).net()
        found = []
        for obs in episodes(run, state, index):
            embedded = net.encode(net.trunk(jnp.asarray(obs)))
            found.append(look(np.asarray(run.experiment.bonus.distance(embedded, embedded))))
        rows.append({key: round(float(np.mean([one[key] for one in found])), 4) for key in found[0]})
    steps = int(by_seed(run, "return").steps[-1])
    return {"env": run.experiment.env.id, "steps": steps, "episodes": EPISODES, "seeds": rows}


def main(paths: list[str]) -> None:
    out = Path(__file__).with_suffix(".json")
    kept = json.loads(out.read_text()) if out.exists() else []
    for path in paths:
        row = learned(path)
        kept = [*(old for old in kept if old["env"] != row["env"]), row]
        out.write_text(json.dumps(kept, indent=1) + "\n")
        print(row["env"], *row["seeds"], sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
