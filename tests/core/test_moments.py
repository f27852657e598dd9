import numpy as np

from etd.core.moments import Moments


def test_scalar_moments_by_hand():
    x = np.array([[1.0, 3.0], [5.0, 7.0]], np.float32)
    once = Moments.start().update(x, 0.9)
    # m = 0.1 * 4; squares about 0.4: 0.36, 6.76, 21.16, 43.56, mean 17.96; v = 0.9 + 1.796
    np.testing.assert_allclose(once.mean, 0.4, rtol=1e-6)
    np.testing.assert_allclose(once.var, 2.696, rtol=1e-6)
    twice = once.update(x, 0.9)
    # m = 0.36 + 0.4; squares about 0.76 have mean 15.4976; v = 0.9 * 2.696 + 1.54976
    np.testing.assert_allclose(twice.mean, 0.76, rtol=1e-6)
    np.testing.assert_allclose(twice.var, 3.97616, rtol=1e-6)


def test_mean_per_environment_but_one_variance():
    x = np.array([[1.0, 10.0], [3.0, 30.0]], np.float32)
    moments = Moments.start((2,)).update(x, 0.9)
    # m = 0.1 * (2, 20); squares about it: 0.64, 64, 7.84, 784, mean 214.12; v = 0.9 + 21.412
    np.testing.assert_allclose(moments.mean, [0.2, 2.0], rtol=1e-6)
    assert moments.var.shape == ()
    np.testing.assert_allclose(moments.var, 22.312, rtol=1e-6)
    standard = (x - [0.2, 2.0]) / (np.sqrt(22.312) + 1e-5)
    np.testing.assert_allclose(moments.standardise(x), standard, rtol=1e-6)


def test_constant_zero_stays_zero_while_the_variance_decays():
    moments = Moments.start()
    for _ in range(3):
        moments = moments.update(np.zeros((4, 2), np.float32), 0.5)
    np.testing.assert_allclose(moments.var, 0.125, rtol=1e-6)
    np.testing.assert_array_equal(moments.standardise(np.zeros(3, np.float32)), 0.0)
