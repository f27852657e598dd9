"""Exploration by temporal distance: ETD and its rivals, trained end to end in JAX."""

__version__ = "0.1.0"
