"""Exact distances of a finite Markov chain: the ground truth for learned distances.

A chain is a matrix P [S, S], from a state (row) to a state (column); ``policy_matrix`` builds it from an MDP and a
policy. Every result is [S, S] float64 with the start in the row and the target in the column, zero on the diagonal
(except for ``occupancy``) and infinite where the target is unreachable.

With H(x, y) the hitting time from x to y, 0 if x = y, and p(y|x) = (1 - gamma) sum over k >= 0 of gamma^k P^k(x, y),
the successor distance is d(x, y) = log p(y|y) - log p(y|x) = -log E[gamma^H(x, y)]: by the strong Markov property
p(y|x) = E[gamma^H(x, y)] p(y|y). It obeys the triangle inequality because E[gamma^H(x, z)] >= E[gamma^H(x, y)]
E[gamma^H(y, z)], and equals H log(1 / gamma) where the path is deterministic.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csgraph

from etd.core.errors import UserError
from etd.core.limits import is_number


def policy_matrix(transitions: np.ndarray, policy: np.ndarray | None = None) -> np.ndarray:
    """The chain [S, S] of an MDP [S, A, S] under a policy [S, A], uniformly random by default."""
    dynamics = np.asarray(transitions, float)
    if dynamics.ndim != 3 or dynamics.shape[0] != dynamics.shape[2]:
        raise UserError(f"The dynamics of an MDP are [S, A, S], not {list(dynamics.shape)}.")
    states, actions, _ = dynamics.shape
    choice = np.full((states, actions), 1 / actions) if policy is None else np.asarray(policy, float)
    if choice.shape != (states, actions):
        raise UserError(f"A policy for {states} states and {actions} actions cannot be an array {list(choice.shape)}.")
    _stochastic(choice, "policy")
    return _chain(np.einsum("xa,xay->xy", choice, dynamics))


def occupancy(matrix: np.ndarray, discount: float) -> np.ndarray:
    """p(y|x): the distribution of the state at a geometric time k >= 0. Rows sum to 1; 0 if unreachable."""
    chain = _chain(matrix)
    _discount(discount)
    eye = np.eye(len(chain))
    # The transposed system is column diagonally dominant: elimination swaps no rows, subtracts nothing off the
    # diagonal, and gets many digits of the smallest probabilities right, which their logarithms need.
    solved = np.linalg.solve(eye - discount * chain.T, eye).T
    return np.where(np.isfinite(shortest_path(chain)), (1 - discount) * np.maximum(solved, 0), 0)


def successor_distance(matrix: np.ndarray, discount: float) -> np.ndarray:
    """log p(y|y) - log p(y|x). Infinite beyond about 700, where probabilities underflow in float64."""
    with np.errstate(divide="ignore"):
        logs = np.log(occupancy(matrix, discount))
    return np.diag(logs) - logs


def hitting_distance(matrix: np.ndarray, discount: float) -> np.ndarray:
    """-log E[gamma^H(x, y)], by one linear system per target: the successor distance computed another, slower way."""
    chain = _chain(matrix)
    _discount(discount)
    states = len(chain)
    reachable = np.isfinite(shortest_path(chain))
    moment = np.eye(states)
    for target in range(states):
        rest = np.flatnonzero(reachable[:, target] & (np.arange(states) != target))
        system = np.eye(len(rest)) - discount * chain[np.ix_(rest, rest)]
        moment[rest, target] = np.linalg.solve(system, discount * chain[rest, target])
    with np.errstate(divide="ignore"):
        return 0.0 - np.log(np.clip(moment, 0, 1))


def hitting_time(matrix: np.ndarray) -> np.ndarray:
    """E[H(x, y)]; also infinite where the target may never be reached. Slower if not all states reach all others."""
    chain = _chain(matrix)
    states = len(chain)
    reachable = np.isfinite(shortest_path(chain))
    if reachable.all():
        # One system for all targets (Hunter 1982): with G the inverse of I - P + 1u', u any distribution, here the
        # uniform one, E[H(x, y)] = (G(y, y) - G(x, y)) / (u'G)(y), where u'G is the stationary distribution.
        inverse = np.linalg.inv(np.eye(states) - chain + 1 / states)
        return (np.diag(inverse) - inverse) / inverse.mean(0)
    times = np.full((states, states), np.inf)
    for target in range(states):
        lost, back = ~reachable[:, target], chain.T > 0
        back[:, target] = False  # who has come to the target can miss it no more
        missed = np.isfinite(csgraph.dijkstra(back, indices=np.flatnonzero(lost), unweighted=True, min_only=True))
        rest = np.flatnonzero(~missed & (np.arange(states) != target))
        system = np.eye(len(rest)) - chain[np.ix_(rest, rest)]
        times[rest, target] = np.linalg.solve(system, np.ones(len(rest)))
        times[target, target] = 0
    return times


def shortest_path(matrix: np.ndarray) -> np.ndarray:
    """The fewest steps, along transitions of nonzero probability; also for an MDP [S, A, S], over all actions."""
    edges: np.ndarray = np.asarray(matrix) > 0
    if edges.ndim == 3:
        edges = np.any(edges, axis=1)
    if edges.ndim != 2 or edges.shape[0] != edges.shape[1]:
        raise UserError(f"Transitions between S states are [S, S] or [S, A, S], not {list(np.shape(matrix))}.")
    return csgraph.shortest_path(edges, unweighted=True)


def _chain(matrix: np.ndarray) -> np.ndarray:
    chain = np.asarray(matrix, float)
    if chain.ndim != 2 or chain.shape[0] != chain.shape[1] or not chain.size:
        raise UserError(f"A transition matrix is square, [S, S], not {list(chain.shape)}.")
    _stochastic(chain, "transition matrix")
    return chain


def _stochastic(rows: np.ndarray, what: str) -> None:
    wrong = ~((rows >= 0).all(1) & (np.abs(rows.sum(1) - 1) < 1e-8))  # NaN is wrong too
    if wrong.any():
        row = int(wrong.argmax())
        raise UserError(f"Row {row} of the {what} is not a distribution: its sum is {rows[row].sum():g}.")


def _discount(discount: float) -> None:
    if not (is_number(discount) and 0 < discount < 1):
        raise UserError(f"A discount of {discount!r} gives no distance. Choose one above 0 and below 1.")
