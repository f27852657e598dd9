"""A run and what is done with it: train, resume, log, save, load, evaluate and export.
Only this room reads and writes a run's record, metrics and checkpoints."""
