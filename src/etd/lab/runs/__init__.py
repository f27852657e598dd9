"""A run and what is done with it: configure, train, resume, log, checkpoint, load and evaluate.
Only this room reads and writes a run's record, metrics and checkpoints."""
