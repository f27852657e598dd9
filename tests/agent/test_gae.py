import numpy as np

from etd.agent.gae import advantages


def slow(reward, value, done, discount, trace, final):
    """The sum of discounted errors of each step, one environment and one start at a time."""
    steps, envs = reward.shape
    out = np.zeros((steps, envs))
    for n in range(envs):
        for t in range(steps):
            weight = 1.0
            for k in range(t, steps):
                after = final[k, n] if done[k, n] else value[k + 1, n]
                out[t, n] += weight * (reward[k, n] + discount * after - value[k, n])
                weight *= discount * trace
                if done[k, n]:
                    break
    return out


def test_against_a_slow_loop_with_ends_in_awkward_places(quick, rng):
    steps, envs = 9, 6
    done = np.zeros((steps, envs), bool)
    done[0, 1] = done[-1, 2] = True
    done[3:5, 3] = True  # an episode of one step
    done[:, 4] = True
    done[:, 5] = rng.random(steps) < 0.4
    reward, final = rng.normal(size=(2, steps, envs)).astype(np.float32)
    value = rng.normal(size=(steps + 1, envs)).astype(np.float32)
    final = np.where(done & (rng.random((steps, envs)) < 0.5), final, 0).astype(np.float32)

    def run():
        plain = advantages(reward, value, done, 0.9, 0.8)
        return plain, advantages(reward, value, done, 0.9, 0.8, final)

    plain, bootstrapped = quick(run)()
    np.testing.assert_allclose(plain, slow(reward, value, done, 0.9, 0.8, 0 * final), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(bootstrapped, slow(reward, value, done, 0.9, 0.8, final), rtol=1e-5, atol=1e-5)


def test_timeout_by_hand():
    column = np.array([[1.0], [2.0], [3.0]], np.float32)
    value = np.array([[0.5], [0.6], [0.7], [0.8]], np.float32)
    done = np.array([[False], [True], [False]])
    final = np.array([[0.0], [4.0], [0.0]], np.float32)
    # errors: 1 + 0.5*0.6 - 0.5 = 0.8;  2 - 0.6 = 1.4;  3 + 0.5*0.8 - 0.7 = 2.7; the end keeps the last one out
    ended = advantages(column, value, done, 0.5, 0.5)
    np.testing.assert_allclose(ended[:, 0], [0.8 + 0.25 * 1.4, 1.4, 2.7], rtol=1e-6)
    # cut off with 4 still to come: the middle error gains 0.5 * 4
    cut = advantages(column, value, done, 0.5, 0.5, final)
    np.testing.assert_allclose(cut[:, 0], [0.8 + 0.25 * 3.4, 3.4, 2.7], rtol=1e-6)
