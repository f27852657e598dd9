"""Benchmarks: throughput of training and of environments, and parity of our MiniGrid with Farama's.
Measurements of speed or of equality with another implementation belong here."""
