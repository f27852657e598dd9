"""The bonus in other people's training loops."""
