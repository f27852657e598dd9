"""Types of options shared by several commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import tyro

Set: TypeAlias = Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(name="set", metavar="PATH=VALUE")]
Import: TypeAlias = Annotated[
    tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(name="import", metavar="MODULE")
]
Only: TypeAlias = Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="TASK/METHOD")]
Envs: TypeAlias = Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="ID")]
Bonuses: TypeAlias = Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="NAME")]
Log: TypeAlias = Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="NAME")]
Env: TypeAlias = Annotated[str | None, tyro.conf.arg(metavar="ID")]
Name: TypeAlias = Annotated[str | None, tyro.conf.arg(metavar="NAME")]
Number: TypeAlias = Annotated[int | None, tyro.conf.arg(metavar="N")]
Real: TypeAlias = Annotated[float | None, tyro.conf.arg(metavar="X")]
OptionalPath: TypeAlias = Annotated[Path | None, tyro.conf.arg(metavar="PATH")]
Position: TypeAlias = Annotated[tuple[int, int] | None, tyro.conf.arg(metavar="ROW COLUMN")]
Flag: TypeAlias = Annotated[bool, tyro.conf.FlagCreatePairsOff]
