"""The level that an environment of the run stood in at the newest checkpoint, with the learned distance and the bonus.

They are drawn in a thread of their own, and only while somebody looks: the training has the better use of the machine.
"""

from __future__ import annotations

import base64
import math
import time
from io import BytesIO
from pathlib import Path
from threading import Event, Thread
from typing import Any

import jax
import numpy as np
from PIL import Image

from etd.core.errors import UserError
from etd.lab.film import distance_map
from etd.lab.film.distance_map import Present
from etd.lab.film.watch import choose
from etd.lab.runs import session
from etd.lab.runs.store import Run

EVERY = 20.0
"""Seconds between two maps, or ten times what one takes if that is longer."""
GLANCE = 1.0
"""Seconds between two looks at whether there is anything to draw."""


class Maps:
    """Keeps ``latest`` up to date with the newest checkpoint from ``start`` to ``stop``, while it is ``asked`` for."""

    def __init__(self, path: Path, seed: int | None = None) -> None:
        self.path, self.seed = path, seed
        self.latest: dict[str, Any] = {"made": 0.0, "words": "The map comes with the first checkpoint."}
        """the newest map, or the ``words`` that say why there is none; ``made`` tells one from the next"""
        self._asked, self._end = Event(), Event()
        self._drawn: Any = None
        self._thread = Thread(target=self._work, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask(self) -> dict[str, Any]:
        """The latest, and a newer one as soon as there can be."""
        self._asked.set()
        return self.latest

    def stop(self) -> None:
        """Wait for a map that is being drawn: JAX does not bear to be torn away from its work."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        pause = GLANCE
        while not self._end.wait(pause):
            pause = GLANCE
            if self._asked.is_set():
                self._asked.clear()
                began = time.monotonic()
                if self._update():
                    pause = max(EVERY, 10 * (time.monotonic() - began))

    def _update(self) -> bool:
        """Draw the newest checkpoint, unless it is drawn already; whether that was so."""
        try:
            newest = next(iter(Run.open(self.path).checkpoints()), None)
            mark = newest and (newest, newest.stat().st_mtime_ns)
        except (UserError, OSError):  # the page says so itself
            return False
        if mark is None or mark == self._drawn:
            return False
        if "words" in self.latest:
            self.latest = {"made": time.time(), "words": "The map is being drawn ..."}
        try:
            found = draw(self.path, self.seed)
        except UserError as error:
            found = {"words": f"There is no map. {error}"}
        except Exception as error:  # whatever a map stumbles over, the page goes on without
            found = {"words": f"The map could not be drawn ({type(error).__name__}: {error})."}
        self._drawn = mark
        self.latest = {**found, "made": time.time()}
        return True


def draw(path: Path, seed: int | None = None) -> dict[str, Any]:
    """The map of the first environment of a seed, by default of the one with the highest return; a UserError if the
    run's bonus learns no distance or its environment has no cells."""
    experiment = Run.open(path).require()
    env = distance_map.check(experiment.env.make(), experiment.bonus)
    run, state = session.load(path)
    index = choose(run, seed)
    bonus = state.learner.bonus
    learner = jax.tree.map(lambda leaf: leaf[index], bonus.learner)
    now, seen = jax.device_get(jax.tree.map(lambda leaf: leaf[index, 0], (state.envs.now.state, bonus.memory)))
    found = distance_map.present(env, experiment.bonus, learner, seen, now)
    return {
        "seed": run.seeds[index],
        "step": int(state.iteration[index]) * experiment.steps_per_iteration,
        "seen": int(seen.filled),
        "distance": _rows(found, found.distance),
        "bonus": _rows(found, found.bonus),
        "place": list(found.place),
        "wide": found.wide,
        "picture": _png(np.asarray(env.render(now))),
    }


def _rows(now: Present, cells: np.ndarray) -> list[list[float | None]]:
    """As JSON has it: None for NaN. The right half of a first-person maze is its view, which has no cells."""
    shown = cells if now.wide == 1 else cells[:, : len(cells)]
    return [[round(value, 4) if math.isfinite(value) else None for value in row] for row in shown.tolist()]


def _png(pixels: np.ndarray) -> str:
    stream = BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode()
