"""ETD in Stable-Baselines3's PPO on Farama's MiniGrid.

    pip install 'etd[sb3,minigrid]'
    python examples/sb3_etd.py --bonus etd --seed 0 --out runs/sb3-etd.csv
    python examples/sb3_etd.py --bonus none --seed 0 --out runs/sb3-none.csv

Rollouts, minibatches and epochs are those of our own trainer. The entropy's coefficient is larger, because SB3
standardises the advantages of every minibatch, however small they are. Each row of the CSV has the steps, the mean
return of the last 100 episodes, and the seconds since the start.
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path

import gymnasium
import minigrid  # noqa: F401  registers its environments
import numpy as np
import torch
from minigrid.wrappers import ImgObsWrapper
from sb3_contrib import RecurrentPPO
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

import etd
from etd.adapters.sb3 import ExplorationCallback


class GridExtractor(BaseFeaturesExtractor):
    """Three small convolutions with norms. SB3's own networks want images of at least 36 x 36 with values up to 255;
    MiniGrid's codes go up to 10, and divided by 255 the policy would hardly see them. The norms are of one image: batch
    norms would make the policy that learns another than the one that acted."""

    def __init__(self, observation_space: gymnasium.spaces.Box, features_dim: int = 64) -> None:
        super().__init__(observation_space, features_dim)
        layers: list[torch.nn.Module] = []
        channels = observation_space.shape[0]  # SB3 puts them first
        for width in (32, 64, 64):
            layers += [torch.nn.Conv2d(channels, width, 2), torch.nn.GroupNorm(1, width), torch.nn.ReLU()]
            channels = width
        self.convolutions = torch.nn.Sequential(*layers, torch.nn.Flatten())
        flat = self.convolutions(torch.zeros(1, *observation_space.shape)).shape[1]
        self.out = torch.nn.Sequential(torch.nn.Linear(flat, features_dim), torch.nn.ReLU())

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.out(self.convolutions(observations.float() / 10))


class Progress(BaseCallback):
    """A row per rollout. Training ends once the mean return of the last 100 episodes is at least ``until``."""

    def __init__(self, out: Path, until: float | None = None) -> None:
        super().__init__()
        self.out, self.until, self.began = out, until, time.time()
        self.solved = False
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text("step,return,seconds\n")

    def _on_step(self) -> bool:
        return not self.solved

    def _on_rollout_end(self) -> None:
        episodes = [episode["r"] for episode in self.model.ep_info_buffer or []]
        mean = np.mean(episodes) if episodes else 0.0
        self.solved = self.until is not None and len(episodes) == 100 and mean >= self.until
        with self.out.open("a", newline="") as file:
            csv.writer(file).writerow((self.num_timesteps, mean, round(time.time() - self.began, 1)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="MiniGrid-DoorKey-8x8-v0")
    parser.add_argument("--bonus", default="etd", help="any of etd's, or none")
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--until", type=float, help="end once the last 100 episodes have this mean return")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--recurrent", action="store_true", help="sb3-contrib's RecurrentPPO")
    parser.add_argument("--epochs", type=int, help="passes of the bonus's model over each rollout")
    parser.add_argument("--rollout", type=int, help="steps of each environment between updates (512; recurrent: 128)")
    parser.add_argument("--out", type=Path, default=Path("runs/sb3.csv"))
    given = parser.parse_args()

    torch.set_num_threads(1)
    network: dict = {"features_extractor_class": GridExtractor, "normalize_images": False}
    algorithm, policy, num_envs, rollout = PPO, "CnnPolicy", 16, 512
    if given.recurrent:  # it learns from whole sequences, one step after the other, so long ones take long
        algorithm, policy, num_envs, rollout = RecurrentPPO, "CnnLstmPolicy", 64, 128
        network |= {"lstm_hidden_size": 64}
    envs = make_vec_env(given.env, n_envs=num_envs, seed=given.seed, wrapper_class=ImgObsWrapper)
    model = algorithm(
        policy,
        envs,
        n_steps=given.rollout or rollout,
        batch_size=512,
        n_epochs=4,
        ent_coef=0.01,
        policy_kwargs=network,
        seed=given.seed,
        device="cpu",
    )
    callbacks: list[BaseCallback] = [Progress(given.out, given.until)]
    if given.bonus != "none":
        longest = envs.get_attr("max_steps")[0]
        fields = {} if given.epochs is None else {"epochs": given.epochs}
        spaces = (model.observation_space, model.action_space)
        explorer = etd.Explorer(given.bonus, *spaces, model.n_envs, max_steps=longest, seed=given.seed, **fields)
        callbacks.append(ExplorationCallback(explorer))
    model.learn(given.steps, callback=CallbackList(callbacks))


if __name__ == "__main__":
    main()
