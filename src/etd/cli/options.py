"""Types of options that commands share; tyro reads them."""

from __future__ import annotations

from pathlib import Path as _Path
from typing import Annotated

import tyro

Set = Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(name="set", metavar="PATH=VALUE")]
Only = Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="TASK/METHOD")]
Log = Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="NAME")]
Envs = Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="ID")]
Bonuses = Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="NAME")]
Env = Annotated[str | None, tyro.conf.arg(metavar="ID")]
Name = Annotated[str | None, tyro.conf.arg(metavar="NAME")]
Number = Annotated[int | None, tyro.conf.arg(metavar="N")]
Real = Annotated[float | None, tyro.conf.arg(metavar="X")]
Path = Annotated[_Path | None, tyro.conf.arg(metavar="PATH")]
Cell = Annotated[tuple[int, int] | None, tyro.conf.arg(metavar="ROW COLUMN")]
Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]
