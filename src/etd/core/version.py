"""The package's version; the only place that defines it."""

__version__ = "0.2.0.dev0"
