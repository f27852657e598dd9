"""The package's version, the one place that says it."""

__version__ = "0.2.0.dev0"
