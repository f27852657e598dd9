"""Runs as curves, statistics, plots and an HTML page.
What needs only a run's record and metrics belongs here; nothing here trains or plays."""
