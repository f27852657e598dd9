"""``PYTHONPATH=examples python results/plugin/cost.py``: what the bonus costs in Stable-Baselines3, as cost.json.

DoorKey-8x8, 16 environments x 512 steps, the settings of ``examples/sb3_etd.py``. Of a rollout and what is learned from
it, the median of REPEATS, after two that compile; with 8 passes of the model (the default), 4, 2 and 1, and without a
bonus. Beside them the model epochs of our own trainer, on the same machine at the same sizes.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import jax
import numpy as np
import torch
from minigrid.wrappers import ImgObsWrapper
from sb3_etd import GridExtractor
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.env_util import make_vec_env

import etd
from etd.adapters.sb3 import ExplorationCallback
from etd.lab.bench.training import training
from etd.training import presets

ENV, REPEATS, STEPS = "MiniGrid-DoorKey-8x8-v0", 5, 512


class Clock(BaseCallback):
    """When each rollout began."""

    def __init__(self) -> None:
        super().__init__()
        self.began: list[float] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        self.began.append(time.perf_counter())


class Timed(etd.Explorer):
    """Notes the seconds of each call."""

    seconds: dict[str, list[float]]

    def reward(self, *args, **options) -> np.ndarray:
        return self._timed("scoring", super().reward, *args, **options)

    def update(self) -> dict[str, float]:
        return self._timed("model", super().update)

    def _timed(self, name, call, *args, **options):
        began = time.perf_counter()
        result = call(*args, **options)
        jax.block_until_ready(self._state)
        self.seconds[name].append(time.perf_counter() - began)
        return result


def measure(epochs: int) -> dict[str, float]:
    """Seconds per rollout and of the bonus's parts in it; 0 epochs: no bonus."""
    envs = make_vec_env(ENV, n_envs=16, seed=0, wrapper_class=ImgObsWrapper)
    model = PPO(
        "CnnPolicy",
        envs,
        n_steps=STEPS,
        batch_size=512,
        n_epochs=4,
        ent_coef=0.01,
        policy_kwargs={"features_extractor_class": GridExtractor, "normalize_images": False},
        seed=0,
        device="cpu",
    )
    clock, row = Clock(), {"epochs": epochs}
    callbacks: list[BaseCallback] = [clock]
    if epochs:
        spaces = (model.observation_space, model.action_space)
        explorer = Timed("etd", *spaces, model.n_envs, max_steps=640, seed=0, epochs=epochs)
        explorer.seconds = {"scoring": [], "model": []}
        callbacks.append(ExplorationCallback(explorer))
    model.learn((REPEATS + 3) * 16 * STEPS, callback=CallbackList(callbacks))
    row["rollout_s"] = float(np.median(np.diff(clock.began)[2:]))
    row["steps_per_s"] = 16 * STEPS / row["rollout_s"]
    if epochs:
        row |= {f"{name}_s": float(np.median(values[2:])) for name, values in explorer.seconds.items()}
    print({name: round(value, 3) for name, value in row.items()}, flush=True)
    return row


def main() -> None:
    torch.set_num_threads(1)
    rows = [measure(epochs) for epochs in (0, 8, 4, 2, 1)]
    phases = training(presets.choose(ENV, "etd"), repeats=REPEATS)["phases_s"]
    print(f"model epochs of our own trainer: {phases['model epochs']:.3f} s")
    found = {
        "cores": len(os.sched_getaffinity(0)),
        "device": jax.devices()[0].device_kind,
        "rows": rows,
        "trainer_model_s": phases["model epochs"],
        "trainer_scoring_s": phases["scoring"],
    }
    Path(__file__).with_name("cost.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
