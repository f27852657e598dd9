"""Sizes shared by the bonuses' tests, and networks recomputed in plain NumPy from their weights."""

from __future__ import annotations

import jax
import numpy as np

from etd.core.types import Box, Discrete, EnvSpec

STEPS, ENVS, ROUNDS = 6, 5, 3
"""three rollouts of 6 steps, scored in blocks of 2: the greatest divisor shared with 32"""
LONGEST = 20
ACTIONS = 3
FEATURES = 6
"""width of the policy's embedding and of the bonuses' own"""
LATENT = 8
SPEC = EnvSpec("vector", (3,), "float32", 1.0, Discrete(ACTIONS), LONGEST, 1, "vector")
BOX_SPEC = EnvSpec("vector", (3,), "float32", 1.0, Box(2, -1.0, 1.0), LONGEST, 1, "vector")
SMALL = {"features": FEATURES, "latent": LATENT, "norm": "none"}
KEY = jax.random.key(0)


class Weights:
    """A learner's weights in float64 and the layers made of them, in NumPy and in eval mode.

    A layer is named by its path in the network: "trunk", "error/fixed/0". Layers take one row or many.
    """

    def __init__(self, learner):
        params, stats = (
            jax.tree.map(lambda leaf: np.array(leaf, np.float64), t) for t in (learner.params, learner.stats)
        )
        self.params, self.stats = params, stats

    def __call__(self, path):
        return _descend(self.params, path)

    def linear(self, path, x):
        layer = self(path)
        return x @ layer["kernel"] + layer["bias"]

    def norm(self, path, x):
        """BatchNorm where there are running statistics, LayerNorm where there are only weights, or nothing."""
        layer, running = self(path), _descend(self.stats, path)
        if not layer:
            return x
        if running:
            mean, var = running["mean"], running["var"]
        else:
            mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) / np.sqrt(var + 1e-5) * layer["weight"] + layer["bias"]

    def block(self, path, x):
        return relu(self.norm(f"{path}/norm", self.linear(f"{path}/linear", x)))

    def gru(self, path, x, hidden):
        """One step of PyTorch's cell."""
        ir, iz, new = np.split(self.linear(f"{path}/inputs", x), 3)
        hr, hz, hn = np.split(self.linear(f"{path}/hidden", hidden), 3)
        update = sigmoid(iz + hz)
        return (1 - update) * np.tanh(new + sigmoid(ir + hr) * hn) + update * hidden

    def trunk(self, path, obs):
        """The three layers that read vector observations."""
        x = np.asarray(obs, np.float64)
        for index in range(3):
            x = relu(self.linear(f"{path}/layers/{index}", x))
        return x


def _descend(node, path):
    for name in path.split("/"):
        node = node.get(int(name) if name.isdigit() else name, {})
    return node


def relu(x):
    return np.maximum(x, 0)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(logits):
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def cross_entropy(logits, action):
    return -np.log(softmax(logits)[action])


def plain(rollout):
    """Its arrays as NumPy's."""
    return jax.tree.map(np.asarray, rollout)


def places(rollout):
    """Every (t, n), in the order of examples."""
    return [(t, n) for t in range(rollout.done.shape[0]) for n in range(rollout.done.shape[1])]


def distillation(weights, seen, prefix="", own=False):
    """RND's error for one row: its two networks, by hand."""
    x = weights.trunk(f"{prefix}fixed_trunk", seen) if own else np.asarray(seen, np.float64)
    y = weights.trunk(f"{prefix}trunk", seen) if own else np.asarray(seen, np.float64)
    x = weights.block(f"{prefix}fixed/1", weights.block(f"{prefix}fixed/0", x))
    x = weights.norm(f"{prefix}fixed_norm", weights.linear(f"{prefix}fixed/2", x))
    y = weights.linear(f"{prefix}learned/1", weights.block(f"{prefix}learned/0", y))
    return np.mean((weights.norm(f"{prefix}norm", y) - x) ** 2)


def inverse_model(weights, rollout, prefix=""):
    """The loss of telling actions from both ends of all steps, and how often the guess was right, step by step."""
    losses, right = [], []
    for t, n in places(rollout):
        ends = [weights.trunk(f"{prefix}trunk", obs[t, n]) for obs in (rollout.obs, rollout.next_obs)]
        guess = weights.linear(f"{prefix}guess", weights.block(f"{prefix}hidden", np.concatenate(ends)))
        action = rollout.action[t, n]
        if action.ndim:
            losses.append(((guess - action) ** 2).sum())
        else:
            losses.append(cross_entropy(guess, action))
            right.append(guess.argmax() == action)
    return np.mean(losses), np.mean(right) if right else None


def predicted(weights, present, action):
    """The forward model's guess of the next embedding, for one step."""
    described = action if np.ndim(action) else np.eye(ACTIONS)[action]
    return weights.linear("forward_out", weights.block("forward_hidden", np.concatenate([present, described])))


class Visits:
    """How often one environment saw an observation this episode; the observation is its bytes."""

    def __init__(self):
        self.past = []

    def step(self, obs, next_obs, done):
        """N_e of the successor, itself included."""
        if not self.past:
            self.past.append(np.asarray(obs).tobytes())
        self.past.append(np.asarray(next_obs).tobytes())
        count = self.past.count(self.past[-1])
        if done:
            self.past = []
        return count
