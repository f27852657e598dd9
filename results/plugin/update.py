"""``python results/plugin/update.py``: the Explorer's update and our trainer's model epochs in turn, as update.json.

Both learn from the same rollout, 16 environments x 512 steps of random observations as large as MiniGrid's, with 8
passes.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import gymnasium
import jax
import numpy as np

import etd
from etd.core.types import Rollout
from etd.training import presets
from etd.training.compiled import Program

ENVS, STEPS, ROUNDS = 16, 512, 10


def main() -> None:
    experiment = presets.choose("MiniGrid-DoorKey-8x8-v0", "etd")
    env, bonus = experiment.env.make(), experiment.bonus
    spaces = gymnasium.spaces.Box(0, 255, (7, 7, 3), np.uint8), gymnasium.spaces.Discrete(7)
    explorer = etd.Explorer(bonus, *spaces, ENVS, max_steps=env.spec.max_steps)
    obs = np.random.default_rng(0).integers(0, 9, (STEPS + 1, ENVS, 7, 7, 3)).astype(np.uint8)
    action, end = np.zeros((STEPS, ENVS), int), np.zeros((STEPS, ENVS), bool)
    end[-1] = True
    given = obs[:-1], action, obs[1:]
    rollout = jax.jit(Rollout.of)(*given, np.zeros((STEPS, ENVS), np.float32), end, ~end & False)
    improve, key = Program(experiment, bonus.improve), jax.random.key(0)
    state = Program(experiment, lambda key: bonus.init(key, env.spec, ENVS))(key)
    seconds: dict[str, list[float]] = {"explorer": [], "trainer": []}
    for _ in range(ROUNDS + 1):  # the first compiles
        explorer.reward(*given, terminated=end, truncated=end & False)
        began = time.perf_counter()
        explorer.update()
        jax.block_until_ready(explorer._state)
        between = time.perf_counter()
        state = jax.block_until_ready(improve(state, rollout, (), key))[0]
        seconds["explorer"].append(between - began)
        seconds["trainer"].append(time.perf_counter() - between)
    kept = {name: [round(one, 3) for one in times[1:]] for name, times in seconds.items()}
    Path(__file__).with_name("update.json").write_text(json.dumps(kept, indent=1) + "\n")
    print(kept, {name: round(float(np.median(times)), 3) for name, times in kept.items()})


if __name__ == "__main__":
    main()
