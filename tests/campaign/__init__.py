"""A kill campaign: trainings are interrupted at random moments, resumed, and compared with uninterrupted ones."""
