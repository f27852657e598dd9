"""RLeXplore's E3B in Stable-Baselines3's PPO by RLeXplore's own recipe, for comparison with ``examples/sb3_etd.py``.

    pip install rllte-core==1.0.1 stable-baselines3 sb3-contrib minigrid -e .
    PYTHONPATH=examples python results/plugin/rlexplore.py --seed 0 --out rlexplore-0.csv

What the recipe in its documentation does is done here, its three faults included: the bonus goes on top of finished
advantages and returns, the flags of episode starts stand for ends, and the successor of an episode's last observation
is the next episode's first. The environments, the policy and the settings of PPO are those of ``examples/sb3_etd.py``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from minigrid.wrappers import ImgObsWrapper
from rllte.xplore.reward import E3B
from sb3_etd import GridExtractor, Progress
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecTransposeImage


class Recipe(BaseCallback):
    """What RLeXplore's documentation tells users of on-policy algorithms to do."""

    def __init__(self, bonus: E3B) -> None:
        super().__init__()
        self.bonus = bonus

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        buffer = self.model.rollout_buffer
        obs = torch.as_tensor(buffer.observations).float()
        last = torch.as_tensor(self.locals["new_obs"]).float()
        starts = torch.as_tensor(buffer.episode_starts)
        steps = {
            "observations": obs,
            "actions": torch.as_tensor(buffer.actions),
            "rewards": torch.as_tensor(buffer.rewards),
            "terminateds": starts,
            "truncateds": starts,
            "next_observations": torch.cat([obs[1:], last[None]]),
        }
        bonus = self.bonus.compute(steps, sync=True).cpu().numpy()
        buffer.advantages += bonus
        buffer.returns += bonus


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="MiniGrid-DoorKey-8x8-v0")
    parser.add_argument("--beta", type=float, default=1.0, help="weight of the bonus (RLeXplore's default: 1)")
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()

    torch.set_num_threads(1)
    envs = VecTransposeImage(make_vec_env(given.env, n_envs=16, seed=given.seed, wrapper_class=ImgObsWrapper))
    model = PPO(
        "CnnPolicy",
        envs,
        n_steps=512,
        batch_size=512,
        n_epochs=4,
        ent_coef=0.01,
        policy_kwargs={"features_extractor_class": GridExtractor, "normalize_images": False},
        seed=given.seed,
        device="cpu",
    )
    # Of its two networks for images only this one takes 7 x 7 cells.
    bonus = E3B(envs, beta=given.beta, encoder_model="espeholt")
    model.learn(given.steps, callback=CallbackList([Progress(given.out), Recipe(bonus)]))


if __name__ == "__main__":
    main()
