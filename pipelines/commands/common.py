"""Flags that several commands share."""

import argparse
import difflib
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from detection.storage.paths import require_supported
from pipelines import DEFAULT_CONFIG, SHIPPED_CONFIGS, config_path, load_config
from schemas.errors import ConfigError, DataError
from schemas.quoting import one_line

if TYPE_CHECKING:
    from schemas.config.config import Config
    from schemas.config.evaluate import ViewsConfig


def add_config_arguments(parser: argparse._ActionsContainer, *, data: bool = False) -> None:
    """Adds `--config` and `--set`; with `data`, also `--data`."""
    if data:
        parser.add_argument(
            "--data", metavar="DIR", help="data set: a folder, archive or https:// address; same as --set data.root=DIR"
        )
    parser.add_argument(
        "--config",
        metavar="YAML",
        type=config_path,
        default=str(DEFAULT_CONFIG),
        help="configuration file, local or gs://, or the name of one that Cocoflow brings along: "
        f"{', '.join(SHIPPED_CONFIGS)}; by default {DEFAULT_CONFIG.stem}",
    )
    add_assignments_argument(parser, "override one configuration key, for example --set train.steps=500")


def add_assignments_argument(parser: argparse._ActionsContainer, what: str) -> None:
    """Adds `--set`; `what` is the first part of its help."""
    parser.add_argument(
        "--set", dest="assignments", metavar="KEY=VALUE", action="append", default=[], help=f"{what}; repeatable"
    )


def add_model_arguments(parser: argparse._ActionsContainer, *, required: bool) -> None:
    """Adds `--model`, a model of any format, and `--checkpoint`."""
    parser.add_argument(
        "--model",
        metavar="MODEL",
        required=required,
        help="SavedModel, LiteRT or ONNX folder of export, output of train, a checkpoint, run.root or push directory "
        "of a pipeline, or the name of a published detector",
    )
    add_checkpoint_argument(parser)


def add_checkpoint_argument(parser: argparse._ActionsContainer) -> None:
    """Adds `--checkpoint`: a `detection.weights.locate.CheckpointChoice`."""
    parser.add_argument(
        "--checkpoint",
        metavar="newest|best|STEP",
        type=_parse_checkpoint,
        help="checkpoint to read if --model is the output of a training; default: the one that the training exported",
    )


def _parse_checkpoint(text: str) -> str | int:
    if text in ("newest", "best"):
        return text
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text}: pass newest, best or a step")
    return int(text)


def add_tta_argument(parser: argparse._ActionsContainer) -> None:
    """Adds `--tta`: a `ViewsConfig`."""
    parser.add_argument(
        "--tta",
        metavar="flip,SCALE,...",
        type=_parse_views,
        help="test-time augmentation: also detect on mirrored images and on other scales (0.5 to 2), and fuse the "
        "boxes; slower, more accurate; for models of boxes only",
    )


def _parse_views(text: str) -> "ViewsConfig":
    from schemas.config.evaluate import ViewsConfig

    items = [item.strip() for item in text.split(",")]
    try:
        return ViewsConfig(flip="flip" in items, scales=tuple(float(item) for item in items if item != "flip"))
    except ValueError:  # pydantic's, too
        raise ConfigError(
            f"--tta {text}: give `flip`, scales from 0.5 to 2, or both, such as --tta flip,0.8,1.2."
        ) from None


def require_paths(
    args: argparse.Namespace, *flags: str, existing: Collection[str] = (), models: Collection[str] = ()
) -> None:
    """Requires that the paths of flags are supported, and that some exist, before TensorFlow is loaded to read them.

    Args:
        args: flags; those that were not given are skipped.
        flags: names of flags with a path or several, and of positional arguments as the help has them.
        existing: further ones, whose paths have to exist.  A checkpoint may be named without `.index`.
        models: further ones, whose paths have to exist unless they are names of detectors.

    Raises:
        ConfigError: see `require_supported`.
        DataError: a path does not exist.
    """
    from detection.storage.files import exists
    from schemas.detectors import DETECTORS

    paths = []
    for flag in (*flags, *models, *existing):
        given = getattr(args, flag.removeprefix("--").replace("-", "_").lower())
        paths += [(flag, path) for path in ([given] if isinstance(given, str) else given or ())]
    for flag, path in paths:
        require_supported(path, flag)
    for flag, path in paths:
        if flag in flags or (flag in models and path in DETECTORS) or exists(path) or exists(f"{path}.index"):
            continue
        near = difflib.get_close_matches(path, DETECTORS, 1) if flag in models else []
        advice = f" Did you mean the detector {near[0]}?" if near else ""
        raise DataError(f"{one_line(path)}: no such file or folder. Check {flag}.{advice}")


def config_of(args: argparse.Namespace, *, here: bool = True) -> "Config":
    """Builds the configuration from the flags, also `--data` of the commands that have it.

    Args:
        args: flags.
        here: the data are read by this machine: an archive, or an address, becomes the folder of its content.

    Raises:
        ConfigError: see `load_config`; an address for a pipeline that runs elsewhere.
        DataError: the data cannot be fetched or unpacked.
    """
    from detection.web.archives import is_address, is_packed, unpacked
    from detection.web.downloads import shown

    config = load_config(args.config, args.assignments)
    root = getattr(args, "data", None) or config.data.root
    if root is not None and here and is_packed(root):
        root = unpacked(root)
    elif root is not None and is_address(root):
        raise ConfigError(
            f"{shown(root)}: a pipeline that runs elsewhere reads data on Cloud Storage. Fetch the file, copy it with "
            "`gcloud storage cp FILE gs://BUCKET/`, and pass --data gs://BUCKET/FILE."
        )
    return config if root == config.data.root else with_keys(config, "data", {"root": root}, where="--data")


def with_keys(config: "Config", section: str, keys: Mapping[str, Any], *, where: str) -> "Config":
    """Sets keys of a section.

    Args:
        config: configuration.
        section: name of the section.
        keys: values by key, as of JSON.
        where: flags that gave them, for messages.

    Raises:
        ConfigError: an invalid value.
    """
    from schemas.config.config_io import parse_config

    tree = config.model_dump(mode="json", exclude_unset=True)
    return parse_config(tree | {section: tree.get(section, {}) | keys}, where)
