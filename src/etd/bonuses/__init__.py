"""Exploration bonuses, one file each. ``BONUSES`` is the registry."""

from etd.bonuses.agac import AGAC
from etd.bonuses.base import Bonus, BonusState, LearnedBonus, Scored
from etd.bonuses.count import Count
from etd.bonuses.deir import DEIR
from etd.bonuses.discriminator import Discriminator
from etd.bonuses.e3b import E3B
from etd.bonuses.ec import EC
from etd.bonuses.etd import ETD
from etd.bonuses.icm import ICM
from etd.bonuses.inverse import Inverse
from etd.bonuses.mixture import Mixture, parse
from etd.bonuses.ngu import NGU
from etd.bonuses.none import NoBonus
from etd.bonuses.noveld import NovelD
from etd.bonuses.ride import RIDE
from etd.bonuses.rnd import RND
from etd.core import plugins

BONUSES: dict[str, type[Bonus]] = {
    "etd": ETD,
    "none": NoBonus,
    "count": Count,
    "rnd": RND,
    "icm": ICM,
    "ngu": NGU,
    "noveld": NovelD,
    "ride": RIDE,
    "agac": AGAC,
    "ec": EC,
    "e3b": E3B,
    "deir": DEIR,
    "inverse": Inverse,
    "discriminator": Discriminator,
    "mixture": Mixture,
}


def find(name: str) -> type[Bonus]:
    """The bonus class called ``name``: one of ours, one offered by an installed package, or module:Class."""
    return plugins.find(Bonus, BONUSES, name)


def make(text: str) -> Bonus:
    """The bonus of a name, or of an expression of names such as "etd + 0.5*rnd", with default settings."""
    return parse(text, lambda name: plugins.construct(find(name), {}))


__all__ = [
    "AGAC",
    "BONUSES",
    "DEIR",
    "E3B",
    "EC",
    "ETD",
    "ICM",
    "NGU",
    "RIDE",
    "RND",
    "Bonus",
    "BonusState",
    "Count",
    "Discriminator",
    "Inverse",
    "LearnedBonus",
    "Mixture",
    "NoBonus",
    "NovelD",
    "Scored",
    "find",
    "make",
]
