import numpy as np

from etd.bonuses import memory


class Simulation:
    """The rule of the module's docstring for one environment, one step after another."""

    def __init__(self):
        self.entries = []

    def step(self, obs, next_obs, done):
        """What ``next_obs`` is compared with."""
        if not self.entries:
            self.entries.append(obs)
        compared = list(self.entries)
        self.entries.append(next_obs)
        if done:
            self.entries = []
        return compared


def awkward_ends(rng, steps, envs):
    """Random ends, and by environment: none, at the first step, at the last, at both, twice in a row, always."""
    done = rng.random((steps, envs)) < 0.25
    done[:, 0] = False
    done[:, 1:5] &= rng.random((1, 4)) < 0.5
    done[0, 1] = done[-1, 2] = done[0, 3] = done[-1, 3] = True
    done[1:3, 4] = True
    done[:, 5] = True
    return done


def test_against_the_rule_step_by_step(quick, rng):
    rounds, steps, envs, capacity = 5, 5, 9, 40
    names = iter(np.arange(1, 10_000, dtype=np.float32))  # every observation is its own number

    @quick
    def run(seen, present, last, done):
        values = memory.candidates(seen, present)
        return values, memory.stored(seen, done), memory.remember(seen, present, last, done)

    simulations = [Simulation() for _ in range(envs)]
    seen = memory.empty(envs, capacity, 1)
    now = np.array([next(names) for _ in range(envs)])
    for _ in range(rounds):
        done = awkward_ends(rng, steps, envs)
        present, expected = np.zeros((steps, envs, 1), np.float32), []
        for t in range(steps):
            present[t, :, 0] = now
            after = np.array([next(names) for _ in range(envs)])
            expected.append([simulations[n].step(now[n], after[n], done[t, n]) for n in range(envs)])
            now = np.where(done[t], [next(names) for _ in range(envs)], after)  # the next episode's first
        values, stored, seen = run(seen, present, after[:, None], done)
        for t in range(steps):
            for n in range(envs):
                compared = np.asarray(values)[n, np.asarray(stored)[t, n], 0]
                np.testing.assert_array_equal(compared, expected[t][n])
        for n in range(envs):
            kept = np.asarray(seen.values)[n, : seen.filled[n], 0]
            np.testing.assert_array_equal(kept, simulations[n].entries)
    assert max(len(simulation.entries) for simulation in simulations) == rounds * steps + 1


def test_longest_episode_fits_its_capacity(quick):
    """max_steps steps fill max_steps + 1 entries, over rollout borders that do not divide them."""
    longest, steps = 7, 3
    seen = memory.empty(1, longest + 1, 1)
    remember = quick(memory.remember)
    for start in range(0, 9, steps):
        rows = np.arange(start, start + steps + 1, dtype=np.float32)[:, None]
        done = (np.arange(start, start + steps) == longest - 1)[:, None]
        before, seen = seen, remember(seen, rows[:-1, None], rows[-1:], done)
    np.testing.assert_array_equal(before.values[0, : before.filled[0], 0], np.arange(7))
    stored = memory.stored(before, done)
    assert stored[0].sum() == longest  # all earlier states of the episode when its last one is scored
    assert seen.filled[0] == 3  # steps 7 and 8 of the next episode
