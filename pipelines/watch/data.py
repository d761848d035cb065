"""The data that a run would train on, and its configuration."""

import hashlib

from components.coco_example_gen.spans.fingerprint import fingerprint
from components.coco_example_gen.spans.locate import locate, require_one_data_set, source_of
from components.coco_example_gen.spans.span_paths import SpanSplits, placeholders
from pipelines.watch.journal import Data
from schemas.artifacts import TRAIN_SPLIT
from schemas.config.config import MODEL_WITHOUT_EFFECT, Config
from schemas.config.config_io import parse_config, to_yaml
from schemas.config.train.training import WITHOUT_EFFECT
from schemas.errors import ConfigError

_DECIDING = ("data", "model", "train", "evaluate", "push")


def has_spans(config: Config) -> bool:
    """Returns whether the paths of the data have placeholders of spans.

    Raises:
        ConfigError: no data set, or placeholders that name no span.
    """
    require_one_data_set(config.data)
    if config.data.root is not None:
        return bool(placeholders(config.data.root))
    return any(placeholders(split.files[0]) for split in config.data.splits.values())


def check_data(config: Config) -> None:
    """Checks that a data set is named, and that new spans can appear if they are to trigger.

    Raises:
        ConfigError: no data set, data without spans, or a span or version that is set.
    """
    spans = has_spans(config)
    if not config.watch.new_span:
        return
    if not spans:
        raise ConfigError(
            "watch.new_span = True, but the data's paths have no {SPAN} and no date. "
            "Write one there, or set watch.cron in place of watch.new_span."
        )
    for key, value in {"span": config.data.span, "version": config.data.version}.items():
        if value is not None:
            raise ConfigError(
                f"data.{key} = {value}: no newer one is ever read, so watch.new_span would never trigger. Remove it."
            )


def find_data(config: Config) -> SpanSplits:
    """Finds the newest span, or the one that is set.

    Raises:
        ConfigError: see `locate`.
        DataError: nothing is there, or not all of it yet.
    """
    return locate(config.data, TRAIN_SPLIT, config.evaluate.split, *filter(None, [config.validation_split]))


def config_digest(config: Config) -> str:
    """Returns a digest of the keys that decide about a run's result."""
    exclude = {"data": ("span", "version"), "train": WITHOUT_EFFECT, "model": MODEL_WITHOUT_EFFECT}
    return hashlib.sha256(to_yaml(config, _DECIDING, exclude=exclude).encode()).hexdigest()[:16]


def observe(config: Config, located: SpanSplits) -> Data:
    """Returns what identifies the data now; reads annotation files, but no image.

    Raises:
        DataError: a file cannot be read.
    """
    at = located.newest
    content = fingerprint(located.files.values(), config.data.label_map)
    name = at.name_in(source_of(config.data)) if has_spans(config) else None
    return Data(at.span, at.version, content, config_digest(config), name)


def config_for(config: Config, data: Data) -> Config:
    """Returns the configuration of a run on this data, whatever newer spans appear in the meantime.

    Raises:
        ConfigError: see `has_spans`.
    """
    if not has_spans(config):
        return config
    tree = config.model_dump(mode="json")
    tree["data"] |= {"span": data.span, "version": data.version}
    return parse_config(tree)
