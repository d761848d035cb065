"""Checks this machine and its environment for what a run needs, without starting one.

Lists versions, packages that differ from requirements.lock or from what Cocoflow requires,
devices, GPU libraries, memory, disk and credentials, each with the remedy for the installation
at hand. `missing` is what runs with this configuration do without, `broken` what they need: then
the exit code is 1. What is only for GPUs or clouds is in tables of its own.
"""

import argparse

from pipelines.commands.common import add_config_arguments

SUMMARY = "check versions, devices, memory, disk and credentials"
EXAMPLE = "cocoflow doctor --set train.strategy=mirrored --set run.root=gs://BUCKET/runs/mine"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    add_config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        ConfigError: invalid configuration.
    """
    import json

    from detection.config_files import read_config
    from pipelines.console import quiet_run
    from pipelines.runs.doctor import diagnose, print_checks

    config = read_config(args.config, args.assignments)
    with quiet_run(None, verbose=False, phase="checking versions and devices"):
        checks = diagnose(config)
    broken = any(check.state == "broken" for check in checks)
    if args.json:
        print(json.dumps({"ok": not broken, "checks": [check._asdict() for check in checks]}, indent=2))
    else:
        print_checks(checks)
    return int(broken)
