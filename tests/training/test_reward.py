import numpy as np

from etd.core.moments import Moments
from etd.training.reward import Mix

REWARD = np.array([[0.0, 1.0], [0.5, 0.0]], np.float32)
BONUS = np.array([[1.0, 3.0], [5.0, 7.0]], np.float32)


def test_mix_by_hand():
    moments, mixed = Mix(extrinsic=10.0, intrinsic=0.1)(Moments.start(), REWARD, BONUS)
    # The moments after this rollout standardise it: m = 0.4, v = 0.9 + 0.1 * 17.96
    np.testing.assert_allclose([moments.mean, moments.var], [0.4, 2.696], rtol=1e-6)
    np.testing.assert_allclose(mixed, 10 * REWARD + 0.1 * (BONUS - 0.4) / (np.sqrt(2.696) + 1e-5), rtol=1e-6)


def test_mix_without_standardising():
    moments, mixed = Mix(intrinsic=0.1, momentum=0.5, standardise=False)(Moments.start(), REWARD, BONUS)
    np.testing.assert_allclose(mixed, REWARD + 0.1 * BONUS, rtol=1e-6)
    np.testing.assert_allclose(moments.mean, 2.0, rtol=1e-6)


def test_no_bonus_leaves_the_reward():
    _, mixed = Mix(intrinsic=0.1)(Moments.start(), REWARD, 0 * BONUS)
    np.testing.assert_array_equal(mixed, REWARD)
