"""``python results/distance/fold.py``: can the loss tell a folded spiral from the true one? Writes fold.json.

Every distance between the spiral's cells gets the potential that suits it best, fitted cell by cell, and is then judged
as ETD's model is trained: by the symmetric InfoNCE loss of minibatches of 128 pairs from the walks. The distances are
the exact one; the exact one up to a limit, and beyond it level or in random order; and ETD's own.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from etd.bonuses import energies
from etd.core.keys import named
from etd.envs.maze import transitions
from etd.lab.mazes import distance, exact
from etd.lab.mazes.scores import scores

WALKS, SEEDS, STEPS, DISCOUNT, PAIRS, RED = 300, range(5), 600, 0.99, 128, 0
LIMITS = (4, 6, 8, 10)
FITTED, JUDGED = 2_000, 2_000
"""minibatches that fit a potential, and that judge the distance with it"""


@partial(jax.jit, static_argnums=(2, 3))
def minibatches(seen: distance.Walks, key: jax.Array, count: int, pairs: int = PAIRS) -> jax.Array:
    """[count, 2, pairs] cells of states and of their futures."""
    bonus = distance.temporal(DISCOUNT)

    def draw(key: jax.Array) -> jax.Array:
        walks = jax.random.randint(named(key, "walks"), (pairs,), 0, seen.cells.shape[1])
        some = jax.tree.map(lambda leaf: leaf[:, walks], seen.rollout)
        rows = bonus.examples(None, some, (), named(key, "examples"))
        chosen = jax.random.randint(named(key, "times"), (pairs,), 0, some.action.shape[0]) * pairs + jnp.arange(pairs)
        return jnp.stack([seen.cells.reshape(-1)[rows.obs[chosen]], seen.cells.reshape(-1)[rows.future[chosen]]])

    return jax.lax.map(draw, jax.random.split(key, count))


@jax.jit
def judge(between: jax.Array, fitting: jax.Array, judging: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The mean loss of a distance [S, S] with its best potential, and the mean's standard error."""

    def loss(potential: jax.Array, pairs: jax.Array) -> jax.Array:
        x, y = pairs
        return energies.symmetric(potential[y] - between[x][:, y])

    optimiser = optax.adam(optax.linear_schedule(0.1, 0, FITTED))

    def fit(state: tuple, pairs: jax.Array) -> tuple[tuple, None]:
        potential, opt = state
        updates, opt = optimiser.update(jax.grad(loss)(potential, pairs), opt)
        return (optax.apply_updates(potential, updates), opt), None

    potential = jnp.zeros(len(between))
    (potential, _), _ = jax.lax.scan(fit, (potential, optimiser.init(potential)), fitting)
    losses = jax.lax.map(partial(loss, potential), judging)
    return losses.mean(), losses.std() / np.sqrt(JUDGED)


def main() -> None:
    maze = distance.find("Spiral")
    _, dynamics = transitions(maze)
    true = exact.successor_distance(exact.policy_matrix(dynamics), DISCOUNT)
    path = exact.shortest_path(dynamics)
    rows = []
    for seed in SEEDS:
        key = jax.random.key(seed)
        seen = distance.walk(maze, WALKS, named(key, "walks"))
        batches = [minibatches(seen, named(key, name), n) for name, n in (("fit", FITTED), ("judge", JUDGED))]
        shuffled = np.random.default_rng(seed)
        found = {"exact": true}
        for limit in LIMITS:
            far = true > limit
            found[f"exact up to {limit}, then level"] = np.minimum(true, limit)
            found[f"exact up to {limit}, then in random order"] = np.where(far, 0, true)
            found[f"exact up to {limit}, then in random order"][far] = shuffled.permutation(true[far])
        found["ETD"] = distance.learn(maze, distance.temporal(DISCOUNT), WALKS, STEPS, seed)
        for name, between in found.items():
            mean, error = judge(jnp.asarray(between, jnp.float32), *batches)
            score = scores(between, path, true, RED)["path spearman"]
            rows.append({"seed": seed, "distance": name, "spearman": score, "loss": float(mean), "error": float(error)})
            print(f"{seed}  {name:40}  Spearman {score:6.3f}   loss {mean:.4f} +- {error:.4f}", flush=True)
    settings = {"maze": "Spiral", "walks": WALKS, "steps": STEPS, "discount": DISCOUNT, "pairs": PAIRS}
    content = {"settings": settings, "rows": rows}
    Path(__file__).with_name("fold.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
