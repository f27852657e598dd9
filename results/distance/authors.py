"""ETD's distance with the authors' network, data and training. Writes authors.json.

python results/distance/authors.py                  the spiral and the harder maze, five seeds each
python results/distance/authors.py Spiral 1         one maze, one seed

1,000 walks of 50 steps, minibatches of 512 pairs, 5,000 steps of Adam without decay, observations as they are. Without
noise a cell looks the same every time, so each step embeds every cell once and takes its pairs from there: the same
loss as from 1,024 observations, for a fraction of the arithmetic.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from fold import minibatches

from etd.bonuses import energies
from etd.core.keys import named
from etd.envs.maze import transitions
from etd.lab.mazes import distance, exact
from etd.lab.mazes.scores import scores
from etd.nets.blocks import Linear, Norm
from etd.nets.model import Learner, create, descend

WALKS, PAIRS, STEPS, DISCOUNT, RED = 1_000, 512, 5_000, 0.99, 0
CHUNK = 100
"""training steps per call"""
CHANNELS, HIDDEN, EMBEDDING = (3, 16, 32, 64), 1024, 64
OPTIMISER = optax.adam(3e-4)
SCORES = ("path spearman", "path spearman, all", "exact spearman, all", "r2")


class Convolutions(nnx.Module):
    """Three of 3 x 3, flattened; no ReLU after the last."""

    def __init__(self) -> None:
        self.layers = nnx.List([Linear(9 * a, b) for a, b in pairwise(CHANNELS)])

    def __call__(self, x: jax.Array) -> jax.Array:
        for number, layer in enumerate(self.layers):
            x = jax.nn.relu(x) if number else x
            x = layer(patches(x))
        return x.reshape(len(x), -1)


def patches(x: jax.Array) -> jax.Array:
    """What a 3 x 3 convolution multiplies: [S, H, W, C] to [S, H, W, 9 C]."""
    height, width = x.shape[1:3]
    x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    return jnp.concatenate([x[:, i : i + height, j : j + width] for i in range(3) for j in range(3)], -1)


class Net(nnx.Module):
    """Embeddings and potentials, each with convolutions of its own."""

    def __init__(self, pixels: int) -> None:
        flat = pixels * CHANNELS[-1]
        self.look, self.look_again = Convolutions(), Convolutions()
        self.hidden = nnx.List([Linear(flat, HIDDEN), Linear(HIDDEN, HIDDEN)])
        self.embedding = Linear(HIDDEN, EMBEDDING)
        self.potential_hidden = nnx.List([Linear(flat, HIDDEN), Linear(HIDDEN, HIDDEN), Linear(HIDDEN, HIDDEN)])
        self.potential_norms = nnx.List([Norm("layer", (HIDDEN,)) for _ in range(3)])
        self.potential_out = Linear(HIDDEN, 1)

    def encode(self, obs: jax.Array) -> jax.Array:
        """[S, D]"""
        x = self.look(obs)
        for layer in self.hidden:
            x = jax.nn.relu(layer(x))
        return self.embedding(x)

    def potential(self, obs: jax.Array) -> jax.Array:
        """[S]"""
        x = self.look_again(obs)
        for layer, norm in zip(self.potential_hidden, self.potential_norms, strict=True):
            x = jax.nn.relu(norm(layer(x)))
        return self.potential_out(x)[:, 0]


@partial(jax.jit, donate_argnums=0)
def train(learner: Learner, obs: jax.Array, pairs: jax.Array) -> tuple[Learner, jax.Array]:
    """A step for each minibatch of ``pairs`` [CHUNK, 2, PAIRS], which are cells; and the mean loss."""

    def loss(net: Net, pairs: jax.Array, key: jax.Array) -> tuple[jax.Array, dict]:
        embedding, potential = net.encode(obs), net.potential(obs)
        x, y = embedding[pairs[0]], embedding[pairs[1]]
        return energies.symmetric(potential[pairs[1]] - energies.mrn(x, y)), {}

    def step(learner: Learner, pairs: jax.Array) -> tuple[Learner, jax.Array]:
        learner, metrics = descend(learner, OPTIMISER, loss, pairs, jax.random.key(0))  # the loss draws nothing
        return learner, metrics["loss"]

    learner, losses = jax.lax.scan(step, learner, pairs)
    return learner, losses.mean()


@jax.jit
def measure(learner: Learner, obs: jax.Array) -> jax.Array:
    """[S, S] the learned distances."""
    embedding = learner.net().encode(obs)
    return energies.mrn(embedding, embedding)


def learn(name: str, seed: int, steps: int = STEPS) -> dict:
    """One seed's row."""
    maze = distance.find(name)
    _, dynamics = transitions(maze)
    true = exact.successor_distance(exact.policy_matrix(dynamics), DISCOUNT)
    key = jax.random.key(seed)
    seen = distance.walk(maze, WALKS, named(key, "walks"))
    cells = np.arange(len(maze.cells))
    obs = jax.vmap(maze.observe)(cells, jax.random.split(key, len(cells))).astype(jnp.float32)  # the key is for noise
    learner = jax.jit(lambda key: create(lambda: Net(obs[0, ..., 0].size), OPTIMISER, key))(named(key, "weights"))
    began = time.monotonic()
    for first in range(0, steps, CHUNK):
        learner, loss = train(learner, obs, minibatches(seen, named(key, "pairs", first), CHUNK, PAIRS))
        print(f"\r{name}, seed {seed}: {first + CHUNK:,} of {steps:,} steps, loss {loss:.4f}", end="", flush=True)
    found = scores(np.asarray(measure(learner, obs)), exact.shortest_path(dynamics), true, RED)
    row = {"maze": name, "seed": seed, "steps": steps, "loss": round(float(loss), 5)}
    print(f", {time.monotonic() - began:.0f} s, Spearman {found['path spearman']:.3f}", flush=True)
    return row | {score: round(found[score], 5) for score in SCORES}


def main(maze: str = "", seeds: str = "5") -> None:
    out = Path(__file__).with_name("authors.json")
    rows = json.loads(out.read_text()) if out.exists() else []
    for name in [maze] if maze else ["Spiral", "Interlocked"]:
        for seed in range(int(seeds)):
            row = learn(name, seed)
            rows = [*(old for old in rows if (old["maze"], old["seed"]) != (name, seed)), row]
            out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
