#!/usr/bin/env python3
"""The command line of Cocoflow: `./pipeline_runner.py COMMAND`, installed as `cocoflow`."""

import argparse
import importlib
import sys
import warnings
from collections.abc import Sequence
from typing import NoReturn

from pipelines.stop_signals import StopSignals, end_soon, stop_signals
from schemas.errors import find_user_error, was_interrupted
from schemas.program import PROGRAM, VERSION, install_hint, program_command
from schemas.quoting import printable, shortened

# Modules of pipelines/commands/; their heavy imports are inside `run`.
COMMANDS = (
    "run",
    "compile",
    "submit",
    "schedule",
    "train",
    "status",
    "lineage",
    "follow",
    "evaluate",
    "compare",
    "predict",
    "export",
    "check-data",
    "to-examples",
    "to-coco",
    "import-checkpoint",
    "convert-config",
    "weights",
    "rollback",
    "doctor",
)
_OURS = ("components", "detection", "pipelines", "schemas")  # a missing module of these is a bug

_DESCRIPTION = "Turns a COCO data set into an evaluated, pushed object detector."
_EPILOG = (
    "`%(prog)s COMMAND --help` explains a command. Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, "
    "130 ended by Ctrl-C, 143 by SIGTERM."
)


def build_parser(names: Sequence[str] = COMMANDS) -> argparse.ArgumentParser:
    """Builds the parser of some commands."""
    program = program_command()
    parser = argparse.ArgumentParser(prog=program, description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {VERSION}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in names:
        module = importlib.import_module(f"pipelines.commands.{name.replace('-', '_')}")
        command = commands.add_parser(
            name,
            help=module.SUMMARY,
            description=f"{module.__doc__}",
            epilog=f"example:\n  {module.EXAMPLE.replace(f'{PROGRAM} {name} ', f'{program} {name} ')}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run, resumes=getattr(module, "resumes", None))
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    with stop_signals() as stop:
        return _run(arguments, stop)


def program() -> NoReturn:
    """Runs the command of this process's arguments and exits."""
    from pipelines.cuda_libraries import make_loadable

    make_loadable()
    with stop_signals() as stop:
        code = _run(None, stop)
        if stop.received:
            end_soon(code)
    sys.exit(code)


def _run(arguments: Sequence[str] | None, stop: StopSignals) -> int:
    try:
        arguments = sys.argv[1:] if arguments is None else arguments
        # Imports only the called command; all of them for --help and for unknown commands.
        names = [name for name in arguments[:1] if name in COMMANDS]
        args = build_parser(names or COMMANDS).parse_args(arguments, argparse.Namespace(typed=arguments))
        stop.resumes = args.resumes is not None and args.resumes(args)
        # Google's libraries warn of their own future.
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"google\.")
        return int(args.run(args))
    except BaseException as error:
        # Beam and TFX wrap a worker's error in errors of their own.
        if stop.received or was_interrupted(error):
            print(stop.word, file=sys.stderr)
            return stop.exit_code
        user_error = find_user_error(error)
        if user_error is None and isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith(_OURS):
            print(f"error: {error}. {install_hint(error.name or '')}", file=sys.stderr)
            return 1
        if user_error is None:
            raise
        print(f"error: {printable(shortened(str(user_error)))}", file=sys.stderr)
        return user_error.exit_code


if __name__ == "__main__":
    program()
