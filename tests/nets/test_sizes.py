"""Parameter counts of the authors' networks, measured on their code."""

import jax
import optax
import pytest

from etd.agent.ppo import PPO
from etd.bonuses import ETD
from etd.core.types import Discrete, EnvSpec
from etd.nets.cells import GRU, LSTM, NoCell
from etd.nets.model import create
from etd.nets.trunks import Trunk

GRID = EnvSpec("grid", (7, 7, 3), "uint8", 255.0, Discrete(7), 100, 1, "grid")
PIXELS = EnvSpec("pixels", (64, 64, 3), "uint8", 255.0, Discrete(7), 100, 1, "pixels")
VECTOR = EnvSpec("vector", (5,), "float32", 1.0, Discrete(7), 100, 1, "vector")


def size(init):
    return jax.eval_shape(init, jax.random.key(0)).size()


def trunk_size(spec, features, norm):
    return size(lambda key: create(lambda: Trunk().build(spec, features, norm), optax.sgd(0.1), key))


def test_policy():
    assert size(lambda key: PPO(features=64, latent=256).init(key, GRID)) == 152_494
    assert trunk_size(GRID, 64, "batch") == 91_174


@pytest.mark.parametrize(("cell", "gates", "width"), [(GRU(), 3, 64), (LSTM(), 4, 128), (NoCell(), 0, 0)])
def test_cells(cell, gates, width):
    """Two matrices and two biases for every gate; PyTorch's GRU of 64 has 24,960 numbers."""
    own = size(lambda key: create(lambda: cell.build(64, 64), optax.sgd(0.1), key))
    assert own == gates * 64 * (64 + 64 + 2)
    assert cell.width(64) == width
    without = 152_494 - 24_960
    assert size(lambda key: PPO(features=64, latent=256, cell=cell).init(key, GRID)) == without + own


def test_distance_model():
    def model(features):
        return size(lambda key: ETD(features=features, latent=256).init(key, GRID, 1).learner)

    assert model(64) == 142_183
    assert model(128) == 240_679


def test_pixel_trunk():
    assert trunk_size(PIXELS, 64, "layer") == 186_400


def test_vector_trunk_has_no_norm():
    by_hand = (5 * 256 + 256) + (256 * 256 + 256) + (256 * 64 + 64)
    assert trunk_size(VECTOR, 64, "batch") == by_hand
    assert trunk_size(VECTOR, 64, "none") == by_hand
