"""The command line: ``etd COMMAND``. Each command is a function; tyro turns its parameters into options."""

from __future__ import annotations

import sys
from typing import Any

import tyro

from etd.cli.bench import BENCHMARKS, bench
from etd.cli.catalogue import list_, show
from etd.cli.check import check
from etd.cli.compare import compare, reproduce
from etd.cli.look import distance, report, watch
from etd.cli.train import evaluate, resume, train
from etd.core.errors import UserError

COMMANDS: dict[str, Any] = {
    "list": list_,
    "show": show,
    "train": train,
    "resume": resume,
    "evaluate": evaluate,
    "watch": watch,
    "distance": distance,
    "report": report,
    "compare": compare,
    "reproduce": reproduce,
    "check": check,
    "bench": bench,
}


def main(args: list[str] | None = None) -> None:
    """Run a command; a UserError is printed as one sentence, with exit status 2."""
    words = list(sys.argv[1:] if args is None else args)
    commands, prog = COMMANDS, "etd"
    if words[:1] == ["bench"]:
        commands, prog, words = BENCHMARKS, "etd bench", words[1:]
        if not words or (words[0].startswith("-") and words[0] not in ("-h", "--help")):
            words = ["training", *words]
    try:
        tyro.extras.subcommand_cli_from_dict(
            commands, prog=prog, description="Exploration by temporal distance.", args=words, sort_subcommands=False
        )
    except UserError as error:
        print(f"etd: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
