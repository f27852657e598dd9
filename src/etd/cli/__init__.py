"""The command line: ``etd COMMAND``. Each command is a function; tyro turns its parameters into options."""

from __future__ import annotations

import errno
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import tyro

from etd.cli.bench import BENCHMARKS, bench
from etd.cli.catalogue import list_, show
from etd.cli.check import check
from etd.cli.compare import compare, reproduce
from etd.cli.look import distance, report, watch
from etd.cli.train import evaluate, export, resume, train
from etd.core import files
from etd.core.errors import UserError
from etd.core.words import printable

COMMANDS: dict[str, Any] = {
    "list": list_,
    "show": show,
    "train": train,
    "resume": resume,
    "evaluate": evaluate,
    "watch": watch,
    "export": export,
    "distance": distance,
    "report": report,
    "compare": compare,
    "reproduce": reproduce,
    "check": check,
    "bench": bench,
}


def main(args: list[str] | None = None) -> None:
    """Run a command; a user's mistake is printed as one sentence, with exit status 2."""
    words = list(sys.argv[1:] if args is None else args)
    try:
        _run(words)
    except UserError as error:
        _refuse(str(error))
    except OSError as error:
        if error.filename is None and error.errno in (errno.EPIPE, errno.ENOSPC):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else Python complains again as it ends
        if isinstance(error, BrokenPipeError):  # whoever reads the output has seen enough
            sys.exit(128 + 13)
        if error.filename is None and error.errno == errno.ENOSPC:
            _refuse(files.sentence("The output", error, "written"))
        if not isinstance(error.filename, str) or not _named(Path(error.filename), words):
            raise
        _refuse(files.sentence(error.filename, error, "read or written"))
    except MemoryError:
        _refuse(f"The memory is full. {_SMALLER}")
    except RuntimeError as error:
        if str(error).startswith("Unable to initialize backend"):
            _refuse(f"JAX cannot start: {str(error).split(chr(10))[0].split(' (you')[0]} Check JAX_PLATFORMS.")
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        _refuse(f"The device's memory is full. {_SMALLER}")
    except SystemExit as stop:
        if (module := _raiser(stop)).partition(".")[0] in ("etd", "tyro", "rich"):
            raise
        _refuse(f"{module} ended the process (exit status {stop.code}). An environment or a bonus must not exit.")
    except KeyboardInterrupt:
        sys.exit(130)


_SMALLER = "Ask for fewer seeds, environments, steps or episodes at once, or for smaller networks."


def _run(words: list[str]) -> None:
    commands, prog = COMMANDS, "etd"
    about = "Exploration by temporal distance. More about a command: etd COMMAND --help"
    if words[:1] == ["bench"]:
        commands, prog, about, words = BENCHMARKS, "etd bench", inspect.getdoc(bench) or "", words[1:]
        if not words or (words[0].startswith("-") and words[0] not in ("-h", "--help")):
            words = ["training", *words]
    if words in (["-h"], ["--help"]):
        commands = {name: _in_short(command) for name, command in commands.items()}
    tyro.extras.subcommand_cli_from_dict(commands, prog=prog, description=about, args=words, sort_subcommands=False)
    sys.stdout.flush()  # while a full disk or a closed pipe can still be told


def _in_short(command: Callable[..., None]) -> Callable[[], None]:
    """A stand-in for the list of commands: what it does, without examples and options."""

    def listed() -> None:
        """Never called."""

    listed.__doc__ = (inspect.getdoc(command) or "").partition("\n\n")[0]
    return listed


def _refuse(sentence: str) -> NoReturn:
    print(f"etd: {printable(sentence)}", file=sys.stderr)
    sys.exit(2)


def _named(file: Path, words: list[str]) -> bool:
    """Whether a file is one of these words, or in a folder that is."""
    return any(Path(word) in (file, *file.parents) for word in words if word not in ("", ".", "/"))


def _raiser(error: BaseException) -> str:
    """The module whose code raised it."""
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    return str(trace.tb_frame.f_globals.get("__name__")) if trace else ""
