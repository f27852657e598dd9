"""Python imports this module at its start if its folder is on the path: what the process flushes is recorded."""

from tests.campaign import power

power.watch()
