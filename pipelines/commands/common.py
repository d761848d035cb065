"""Flags that several commands share."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.errors import ConfigError, DataError
from schemas.quoting import one_line

if TYPE_CHECKING:
    from schemas.config.config import Config
    from schemas.config.evaluate import ViewsConfig

CONFIGS = Path(__file__).parents[1] / "configs"
DEFAULT_CONFIG = CONFIGS / "default.yaml"
SHIPPED_CONFIGS = sorted(path.stem for path in CONFIGS.glob("*.yaml"))


def add_config_arguments(parser: argparse._ActionsContainer) -> None:
    """Adds `--config` and `--set`."""
    parser.add_argument(
        "--config",
        metavar="YAML",
        type=config_path,
        default=str(DEFAULT_CONFIG),
        help="configuration file, local or gs://, or the name of one that Cocoflow brings along: "
        f"{', '.join(SHIPPED_CONFIGS)}; by default {DEFAULT_CONFIG.stem}",
    )
    add_assignments_argument(parser, "override one configuration key, for example --set train.steps=500")


def config_path(text: str) -> str:
    """Returns the path of a configuration from the value of `--config`, a path or a shipped configuration's name."""
    return str(CONFIGS / f"{text}.yaml") if text in SHIPPED_CONFIGS else text


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


def add_checkpoint_argument(parser: argparse._ActionsContainer) -> None:
    """Adds `--checkpoint`: a `detection.weights.locate.CheckpointChoice`."""
    parser.add_argument(
        "--checkpoint",
        metavar="newest|best|STEP",
        type=_checkpoint_choice,
        help="checkpoint to read if --model is the output of a training; default: the one that the training exported",
    )


def _checkpoint_choice(text: str) -> str | int:
    if text in ("newest", "best"):
        return text
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text}: pass newest, best or a step")
    return int(text)


def add_tta_argument(parser: argparse._ActionsContainer) -> None:
    """Adds `--tta`; `views_from_text` reads it."""
    parser.add_argument(
        "--tta",
        metavar="flip,SCALE,...",
        help="test-time augmentation: also detect on mirrored images and on other scales (0.5 to 2), and fuse the "
        "boxes; slower, more accurate; for models of boxes only",
    )


def views_from_text(text: str) -> "ViewsConfig":
    """Reads the value of `--tta`.

    Raises:
        ConfigError: anything but `flip` and scales.
    """
    from schemas.config.evaluate import ViewsConfig

    items = [item.strip() for item in text.split(",")]
    try:
        return ViewsConfig(flip="flip" in items, scales=tuple(float(item) for item in items if item != "flip"))
    except ValueError:  # pydantic's, too
        raise ConfigError(
            f"--tta {text}: give `flip`, scales from 0.5 to 2, or both, such as --tta flip,0.8,1.2."
        ) from None


def require_existing(paths: Mapping[str, str | Sequence[str] | None]) -> None:
    """Requires that paths exist, before TensorFlow is loaded to read them.

    Args:
        paths: by flag, a path or several; None is skipped.  A checkpoint may be named without `.index`.

    Raises:
        DataError: a path does not exist.
    """
    from detection.storage.files import exists

    for flag, given in paths.items():
        for path in [given] if isinstance(given, str) else given or ():
            if not (exists(path) or exists(f"{path}.index")):
                raise DataError(f"{one_line(path)}: no such file or folder. Check {flag}.")


def config_of(args: argparse.Namespace) -> "Config":
    """Builds the configuration from the flags, `--data` included.

    Raises:
        ConfigError: see `read_config`; or there is no such detector.
    """
    from detection.config_files import read_config
    from schemas.config.config_io import parse_config
    from schemas.detectors import require_detector

    config = read_config(args.config, args.assignments)
    require_detector(config.model.name)
    if args.config == str(DEFAULT_CONFIG) and config.model.name != read_config(args.config).model.name:
        # The default configuration's image size is that of its detector.
        config = read_config(args.config, ["model.image_size=null", *args.assignments])
    if args.data is None:
        return config
    tree = config.model_dump(mode="json", exclude_unset=True)
    return parse_config(tree | {"data": tree.get("data", {}) | {"root": args.data}}, where="--data")
