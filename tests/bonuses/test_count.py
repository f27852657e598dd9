from __future__ import annotations

import numpy as np
import pytest
from oracle import ENVS, KEY, LONGEST, SPEC, STEPS, Visits, plain

from etd.bonuses import Count

FORMS = {"first": lambda count: float(count == 1), "root": lambda count: count**-0.5}


@pytest.mark.parametrize("form", FORMS)
def test_bonus_falls_with_visits_of_the_successor(quick, rollouts, form):
    bonus = Count(form=form)
    score = quick(lambda state, rollout: bonus.score(state, rollout, KEY))
    state = bonus.init(KEY, SPEC, ENVS)
    past = [Visits() for _ in range(ENVS)]
    counts = []
    for rollout in rollouts:
        state, scored = score(state, rollout)
        r = plain(rollout)
        for t in range(STEPS):
            for n in range(ENVS):
                counts.append(past[n].step(r.obs[t, n], r.next_obs[t, n], r.done[t, n]))
                np.testing.assert_allclose(scored.bonus[t, n], FORMS[form](counts[-1]), rtol=1e-6)
        filled = [len(one.past) for one in past]
        np.testing.assert_array_equal(state.memory.filled, filled)
        np.testing.assert_allclose(scored.metrics["memory_filled"], max(filled) / (LONGEST + 1), rtol=1e-6)
        assert scored.bonus.dtype == np.float32
    assert set(counts) >= {1, 2, 3, 4}


def test_nothing_to_train(rollouts):
    bonus = Count()
    state = bonus.init(KEY, SPEC, ENVS)
    after, metrics = bonus.improve(state, rollouts[0], (), KEY)
    assert after is state
    assert metrics == {}
    assert bonus.needs == frozenset()
