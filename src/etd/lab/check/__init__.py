"""Checks with findings in plain words: does an environment match its spec, and does a bonus behave as bonuses should?
One module per thing to check; ``check`` runs them all."""

from __future__ import annotations

from typing import Any

from etd.lab.check.finding import Finding

__all__ = ["Finding", "check"]


def check(env: Any = "MiniGrid-DoorKey-8x8-v0", bonus: Any = "etd", seed: int = 0) -> list[Finding]:
    """Findings on an environment and on a bonus in it, each a name or an object as in ``etd.train``; ``bonus=None``
    checks only the environment.

    >>> all(finding.good for finding in check("Maze-Spiral-v0", bonus=None))
    True
    """
    from dataclasses import replace

    from etd.envs import Task
    from etd.lab.check import bonus as bonuses
    from etd.lab.check import env as envs
    from etd.training import presets

    task = Task.of(env)
    chosen = None if bonus is None else bonuses.prepare(replace(presets.choose(task, bonus), seed=seed))
    findings = envs.examine(task, seed)
    if chosen is not None and all(finding.good for finding in findings):
        findings += bonuses.examine(chosen)
    return findings
