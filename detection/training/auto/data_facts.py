"""Facts about a data set for a detector before training, with advice: counts, small objects, crowded images."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from detection.datasets.statistics import SplitSummary, total
from detection.datasets.trainable import obstacles
from detection.input_pipeline.augmentation.flip import mirrored_categories
from detection.input_pipeline.evaluation_records import parse_record
from detection.input_pipeline.record_reader import RecordReader
from detection.models.registry import detector_config
from detection.training.auto.input_size import size_fact
from schemas.artifacts import TRAIN_SPLIT
from schemas.config.config import Config
from schemas.errors import DataError
from schemas.quoting import first_of, one_line

_LOGGER = logging.getLogger("cocoflow.trainer")

FEW = 10  # categories with fewer objects are rare
_FEW_IMAGES = 50
_LISTED = 5  # max number of listed categories
_SHAPES = {"masks": "include_mask", "keypoints": "keypoints"}  # shape -> key of the detector's options
_KEPT = "kept for train.validation"  # used as the name of a split


class Fact(NamedTuple):
    """A fact about the data, and advice; "": no action needed."""

    text: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.text}. {self.advice}" if self.advice else self.text


def log_data_facts(datasets: Sequence[Mapping[str, Any]], config: Config, *, kept: RecordReader | None = None) -> None:
    """Logs the facts about the training examples; facts with advice are warnings.

    Args:
        datasets: contents of the dataset.json of each Examples artifact.  Nothing is logged if one has no
            statistics, as that of existing records.
        config: the run's configuration.
        kept: reader of the training images that are kept for validation; None: no image is kept.

    Raises:
        DataError: a record cannot be read.
    """
    summaries = summaries_of(datasets)
    if not summaries:
        return
    if kept is not None:
        summaries |= _without_kept(summaries[TRAIN_SPLIT], kept)
    for fact in data_facts(summaries, datasets[0]["categories"], config):
        _LOGGER.log(logging.WARNING if fact.advice else logging.INFO, "%s", fact)


def learned_shapes(config: Config) -> list[str]:
    """Returns what the configured detector learns besides boxes: `masks`, `keypoints`.

    Raises:
        ConfigError: unknown detector, or invalid overrides.
    """
    preset = detector_config(config.model.name, overrides=config.model.overrides)
    return [name for name, key in _SHAPES.items() if getattr(preset, key, False)]


def require_trainable(datasets: Sequence[Mapping[str, Any]], config: Config, *, judged: str = "") -> None:
    """Requires that there is something to learn, and to judge the model by.

    Args:
        datasets: as for `log_data_facts`; nothing is required of those without statistics.
        config: the run's configuration.
        judged: split that judges the model; "": none does.

    Raises:
        ConfigError: unknown detector, or invalid overrides.
        DataError: there is not.
    """
    summaries = summaries_of(datasets)
    if not summaries:
        return
    shapes = learned_shapes(config)
    if reasons := list(obstacles(summaries, datasets[0]["categories"], judged=judged, shapes=shapes)):
        raise DataError(f"the data set cannot be trained on: {'; '.join(reasons)}. Correct it: cocoflow check-data.")


def summaries_of(datasets: Sequence[Mapping[str, Any]]) -> dict[str, SplitSummary]:
    """Returns the summaries of all data sets together by split name; {}: one has none, or there is no data set."""
    splits = [dataset.get("splits", {}) for dataset in datasets]
    if not all(named and all("statistics" in split for split in named.values()) for named in splits):
        return {}
    names = dict.fromkeys(name for named in splits for name in named)
    return {
        name: total(SplitSummary.from_dict(named[name]["statistics"]) for named in splits if name in named)
        for name in names
    }


def _without_kept(summary: SplitSummary, kept: RecordReader) -> dict[str, SplitSummary]:
    """Divides the summary of the training images into images to train on and images kept for validation."""
    kept_summary = SplitSummary()
    for number in range(len(kept)):
        image, _, annotations, _ = parse_record(kept.read(number))
        # No fact depends on formats and colour modes.
        kept_summary.add(annotations, width=image.width, height=image.height, image_format="", color_mode="")
    return {TRAIN_SPLIT: summary.without(kept_summary), _KEPT: kept_summary}


def data_facts(
    splits: Mapping[str, SplitSummary], categories: Sequence[Mapping[str, Any]], config: Config
) -> list[Fact]:
    """Lists the facts about a data set for the configured detector.

    Args:
        splits: summaries by split name; all facts but the first describe `train`, or all splits if there is no
            `train`.
        categories: COCO categories.
        config: configuration of the run; uses the section `model` and `train.augment`.

    Raises:
        ConfigError: unknown detector, or invalid overrides.
    """
    trained, where = (splits[TRAIN_SPLIT], TRAIN_SPLIT) if TRAIN_SPLIT in splits else (total(splits.values()), "all")
    counts = "; ".join(
        f"{one_line(name)}: {part.images:,} images, {part.objects:,} objects" for name, part in splits.items()
    )
    return [
        Fact(counts),
        *(_categories(trained, categories, where) if trained.objects else ()),
        *_mirrored(categories, config),
        *_few_images(trained),
        *_without_masks(trained, categories, config),
        *_input_size(trained, config),
        *_crowded_images(trained, total(splits.values()), config),
    ]


def _categories(trained: SplitSummary, categories: Sequence[Mapping[str, Any]], where: str) -> list[Fact]:
    """Lists the most and least frequent categories, and categories with fewer than FEW objects."""
    if not categories:
        return []
    objects = trained.objects_of()
    ordered = sorted(categories, key=lambda category: (-objects[category["id"]], category["id"]))
    counts = [(one_line(category["name"]), objects[category["id"]]) for category in ordered]
    ends = counts if len(counts) <= 2 * _LISTED else [*counts[:_LISTED], *counts[-2:]]
    texts = [f"{name} ({count:,})" for name, count in ends]
    if len(ends) < len(counts):
        texts.insert(_LISTED, "...")
    facts = [Fact(f"objects of {len(counts):,} {_plural(len(counts), 'category')} in {where}: {', '.join(texts)}")]
    rare = [(name, count) for name, count in reversed(counts) if count < FEW]
    if rare:
        named = first_of([f"{name} ({count})" for name, count in rare], _LISTED)
        text = f"{len(rare):,} {_plural(len(rare), 'category')} with fewer than {FEW} objects in {where}: {named}"
        facts.append(Fact(text, "Expect a low AP for them: annotate more, or remove the category."))
    return facts


def _mirrored(categories: Sequence[Mapping[str, Any]], config: Config) -> Iterator[Fact]:
    """Names categories that a mirror confuses."""
    pair, flip = mirrored_categories(categories), config.train.augment.horizontal_flip
    if pair is not None and flip:
        text = f"a mirrored {one_line(pair[0])} looks like a {one_line(pair[1])}"
        if flip == "auto":
            yield Fact(f"{text}: no image is mirrored (train.augment.horizontal_flip = auto)")
        else:
            yield Fact(text, "Half of the images are mirrored: --set train.augment.horizontal_flip=false")


def _few_images(trained: SplitSummary) -> Iterator[Fact]:
    """Counts the images with objects if they are so few that a model may not be blessed."""
    images = trained.images - trained.instances_per_image[0]
    if 0 < images < _FEW_IMAGES:
        yield Fact(
            f"training images with objects: {images:,}",
            "A detector learns little from so few: AP may stay below 0.05. Label a hundred or more.",
        )


def _without_masks(trained: SplitSummary, categories: Sequence[Mapping[str, Any]], config: Config) -> Iterator[Fact]:
    """Counts the objects of which a detector with masks learns the box alone, as they have no mask."""
    without = trained.objects_of() - trained.masks_of
    if not trained.masks_of or not without.total() or "masks" not in learned_shapes(config):
        return
    never = [one_line(one["name"]) for one in categories if without[one["id"]] and not trained.masks_of[one["id"]]]
    text = f"{without.total():,} of {trained.objects:,} objects in train have no mask; only their boxes are learned"
    if never:
        text += f"; no object of {', '.join(never[:_LISTED])} has one, so its predicted masks mean nothing"
    yield Fact(text, "Draw masks, or choose a detector of boxes, with --set model.overrides.include_mask=false.")


def _input_size(trained: SplitSummary, config: Config) -> Iterator[Fact]:
    fact = size_fact(trained, config)
    if fact is not None:
        yield Fact(*fact)


def _crowded_images(trained: SplitSummary, everything: SplitSummary, config: Config) -> list[Fact]:
    """Counts images with more objects than training uses or the detector returns."""
    preset: Any = detector_config(config.model.name, postprocess=config.model.postprocess)
    limits = (
        ("model.max_instances", config.model.max_instances, trained, "Training drops the rest"),
        (
            "model.postprocess.max_detections",
            preset.postprocess.max_detections,
            everything,
            "The detector cannot return them all",
        ),
    )
    facts = []
    for key, limit, part, effect in limits:
        above = sum(images for instances, images in part.instances_per_image.items() if instances > limit)
        if above:
            text = f"{above:,} of {part.images:,} images have more than {limit} objects, the value of {key}"
            facts.append(Fact(text, f"{effect}: --set {key}={max(part.instances_per_image)}"))
    return facts


def _plural(count: int, word: str) -> str:
    return word if count == 1 else f"{word[:-1]}ies"
