"""Makes an earlier version in a push directory the one that a model server picks.

A server picks the version of the highest number. The files of the earlier version are
published once more under a new highest number: in one atomic step, however many versions
lie between. No version is removed. The pipeline does not push a model again that was
rolled back, until another model is pushed.

Without --to, the earlier version is the newest one from before the served model.
"""

import argparse
import sys

from pipelines.commands.common import require_paths

SUMMARY = "serve an earlier version of the model again"
EXAMPLE = "cocoflow rollback --directory runs/demo/serving"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    parser.add_argument(
        "--directory",
        metavar="PUSH_DIR",
        required=True,
        help="folder of the versions, local or gs:// (push.directory; default of a run: serving below run.root)",
    )
    parser.add_argument("--to", metavar="VERSION", type=int, help="number of the version to serve again")


def run(args: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        DataError: no such version, no earlier one, or a damaged one; the folder cannot be written.
    """
    from components.saved_model_pusher.rollback import roll_back
    from detection.storage.paths import name_of
    from schemas.quoting import one_line

    require_paths(args, "--directory")
    done = roll_back(args.directory, to=args.to)
    if name_of(done.version) == str(done.replaced):
        print(f"version {done.replaced} is served, and has the files of version {done.files_of}", file=sys.stderr)
    else:
        print(
            f"version {name_of(done.version)} has the files of version {done.files_of} and replaces {done.replaced}",
            file=sys.stderr,
        )
    print(one_line(done.version))
    return 0
