"""A page on this machine that follows a training as it runs: it reads the run and never writes to it.
Code that watches a run while another process trains it belongs here."""
