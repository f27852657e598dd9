"""Exploration bonuses, one file each. ``BONUSES`` is the registry."""

from etd.bonuses.base import Bonus, BonusState, LearnedBonus, Scored
from etd.bonuses.etd import ETD
from etd.bonuses.none import NoBonus

BONUSES: dict[str, type[Bonus]] = {"etd": ETD, "none": NoBonus}

__all__ = ["BONUSES", "ETD", "Bonus", "BonusState", "LearnedBonus", "NoBonus", "Scored"]
