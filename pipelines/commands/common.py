"""Flags that several commands share."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from schemas.config.config import Config

CONFIGS = Path(__file__).parents[1] / "configs"
DEFAULT_CONFIG = CONFIGS / "default.yaml"


def add_config_arguments(parser: argparse._ActionsContainer) -> None:
    """Adds `--config` and `--set`."""
    parser.add_argument(
        "--config", metavar="YAML", default=str(DEFAULT_CONFIG), help="configuration file, local or gs://"
    )
    add_assignments_argument(parser, "override one configuration key, for example --set train.steps=500")


def add_assignments_argument(parser: argparse._ActionsContainer, what: str) -> None:
    """Adds `--set`; `what` is the first part of its help."""
    parser.add_argument(
        "--set",
        dest="assignments",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help=f"{what}; repeatable",
    )


def config_of(args: argparse.Namespace) -> "Config":
    """Builds the configuration from the flags, `--data` included.

    Raises:
        ConfigError: see `read_config`.
    """
    from pipelines.config_files import read_config
    from schemas.config.config_io import parse_config

    config = read_config(args.config, args.assignments)
    if args.data is None:
        return config
    tree = config.model_dump(mode="json", exclude_unset=True)
    return parse_config(tree | {"data": tree.get("data", {}) | {"root": args.data}})
