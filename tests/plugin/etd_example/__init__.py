"""What a user brings along: a bonus, a trunk, a PPO, a mix, environments for the host. Nothing here is part of etd."""

__version__ = "1.2"
