"""Restores trained detectors, with configuration and categories, from SavedModels and checkpoints."""

from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

from pydantic import Field, TypeAdapter

from detection.coco.validation.checks import check_categories
from detection.inference.device_copies import copy_weights
from detection.models.detector import Detector
from detection.models.registry import detector_from_config
from detection.storage.files import exists, read_text
from detection.storage.json_files import parse_file, read_json
from detection.storage.paths import join, parent
from detection.weights.locate import locate_weights
from detection.weights.weight_source import WeightSource, load_detector_weights
from schemas.artifacts import CONFIG_YAML, EXPORTED_FROM_JSON, EXTRA_FILES, LABELS_JSON, METRICS_JSON, TRAIN_SPLIT
from schemas.config.config import Config
from schemas.config.config_io import from_yaml
from schemas.config.train.initialization import SourceWeights
from schemas.config.train.optimization import WeightsChoice, WeightsKind
from schemas.errors import ConfigError, DataError

_AGAIN = "export or copy the model again"


class ChosenOn(NamedTuple):
    """Images that the best checkpoint of a training was selected on.

    split: name of the split; `train`: a part of it excluded from training.
    images: number of images.
    metric: metric of the selection.
    """

    split: str
    images: int
    metric: str

    def __str__(self) -> str:
        part = "training images that were not trained on" if self.split == TRAIN_SPLIT else f"images of {self.split}"
        return f"chosen by {self.metric} on {self.images:,} {part}"

    @classmethod
    def from_json(cls, content: Any) -> Self | None:
        """Reads the result of `_asdict` from a JSON file; None: the content is invalid."""
        values = content if isinstance(content, dict) else {}
        split, images, metric = (values.get(name) for name in cls._fields)
        if isinstance(split, str) and isinstance(images, int) and isinstance(metric, str):
            return cls(split, images, metric)
        return None


class ExportedFrom(NamedTuple):
    """The checkpoint of an exported SavedModel.

    step: number of training steps.
    weights: `ema`: the EMA weights; `raw`: the weights that the optimizer updated.
    chosen_on: images that the checkpoint was selected on; None: not a best checkpoint.
    """

    step: Annotated[int, Field(ge=0, lt=2**63, strict=True)]
    weights: WeightsKind
    chosen_on: ChosenOn | None = None

    def __str__(self) -> str:
        weights = f"{self.weights} weights of step {self.step:,}"
        return weights if self.chosen_on is None else f"{weights}, {self.chosen_on}"

    def as_json(self) -> dict[str, Any]:
        """Returns the content of `schemas.artifacts.EXPORTED_FROM_JSON`."""
        chosen_on = {"chosen_on": self.chosen_on._asdict()} if self.chosen_on else {}
        return {"step": self.step, "weights": self.weights, **chosen_on}


_EXPORTED_FROM = TypeAdapter(ExportedFrom)


class TrainedDetector(NamedTuple):
    """A detector with its weights and description.

    detector: built detector.
    categories: COCO categories, in the order of the detector's classes; `name` is null for a class
        without a category.
    config: configuration of the training.
    exported_from: training step and kind of the weights; None: unknown, as for an old SavedModel.
    """

    detector: Detector
    categories: list[dict[str, Any]]
    config: Config
    exported_from: ExportedFrom | None


def load_trained(path: str | Path, *, weights: WeightsChoice = "auto") -> TrainedDetector:
    """Builds a trained detector and loads its weights.

    Args:
        path: SavedModel of `detection.export.saved_model_export`; output of `train` or a
            pipeline's `ModelRun` (the exported checkpoint, as of `checkpoint_of_training`); one of its checkpoints
            (`.../ckpt-500`); a pipeline's `Model`; a push directory (the newest version); or an imported model
            (`import-checkpoint`).  Local or remote.
        weights: weights of a checkpoint to load.  `ema`: the EMA weights, or the raw weights of
            variables without EMA; `raw`: all raw weights; `auto`: the weights that its training exports.
            A SavedModel has only one kind.

    Raises:
        DataError: weights, configuration or categories are missing, unreadable or inconsistent; or the
            requested weights are missing.
    """
    files = locate_weights(path)
    config = _read_config(_required(files.config, CONFIG_YAML, path))
    categories = _read_categories(_required(files.labels, LABELS_JSON, path))
    if files.saved_model is None:
        source = _checkpoint_source(files.prefix, config, weights)
        exported_from = _origin(source)
    else:
        source = WeightSource(files.saved_model)
        exported_from = read_exported_from(files.saved_model)
        _require_exported(files.saved_model, exported_from, weights)
    detector = detector_from_config(config.model, categories, precision=config.train.precision)
    load_detector_weights(detector, source)
    return TrainedDetector(detector, categories, config, exported_from)


def with_config(trained: TrainedDetector, config: Config) -> TrainedDetector:
    """Builds a detector again for a configuration that is compatible with its weights."""
    if config == trained.config:
        return trained
    detector = detector_from_config(config.model, trained.categories, precision=config.train.precision)
    copy_weights(trained.detector, [detector])
    return trained._replace(detector=detector, config=config)


def _checkpoint_source(prefix: str, config: Config, weights: WeightsChoice) -> WeightSource:
    """Opens one of our checkpoints with the selected weights."""
    kind: SourceWeights = "averaged" if weights == "ema" else weights
    if weights == "auto" and config.train.ema.exported_weights == "raw":
        kind = "raw"
    return WeightSource(prefix, weights=kind, option="the choice of weights")


def _origin(source: WeightSource) -> ExportedFrom | None:
    if source.step is None:
        return None
    beside = join(parent(source.prefix), METRICS_JSON)  # written with the best checkpoint
    report = read_json(beside) if exists(beside) else None
    chosen_on = None
    if isinstance(report, dict) and report.get("step") == source.step:
        chosen_on = ChosenOn.from_json(report.get("chosen_on"))
    return ExportedFrom(source.step, "ema" if source.ema_names else "raw", chosen_on)


def _required(file: str | None, name: str, model: str | Path) -> str:
    """Returns a located file that describes a model; without one, raises an error."""
    if file is None:
        raise DataError(
            f"{model}: cannot read the model, as there is no {name} beside its weights. Export or copy the model "
            "again; convert another program's checkpoint with import-checkpoint."
        )
    return file


def _require_exported(folder: str, exported_from: ExportedFrom | None, weights: WeightsChoice) -> None:
    """Requires that a SavedModel has the weights of this kind."""
    if weights == "auto" or (exported_from is not None and exported_from.weights == weights):
        return
    held = "of unknown kind" if exported_from is None else f"the {exported_from.weights} weights"
    raise DataError(
        f"{folder}: requested the {weights} weights, but a SavedModel has one set of weights: {held}. "
        "Pass a checkpoint of the training."
    )


def is_described(model: str | Path) -> bool:
    """Returns whether a model has its configuration, as ours have and those of other tools do not.

    Args:
        model: SavedModel folder, or an argument of `load_trained`.
    """
    return _description(model, CONFIG_YAML) is not None


def _description(model: str | Path, name: str) -> str | None:
    """Finds a file that describes a model: in a SavedModel, or beside a checkpoint."""
    inside = join(model, EXTRA_FILES, name)
    if exists(inside):
        return inside
    try:
        files = locate_weights(model)
    except DataError:
        return None
    return {CONFIG_YAML: files.config, LABELS_JSON: files.labels}[name]


def read_model_config(model: str | Path) -> Config:
    """Reads the configuration of a trained model.

    Args:
        model: SavedModel folder, or an argument of `load_trained`.

    Raises:
        DataError: the file is missing or damaged.
    """
    return _read_config(_description(model, CONFIG_YAML) or join(model, EXTRA_FILES, CONFIG_YAML))


def _read_config(path: str) -> Config:
    try:
        return from_yaml(read_text(path), where=path)
    except (ConfigError, DataError) as error:
        raise DataError(f"{error} The file is part of the model beside it: {_AGAIN}.") from None


def read_model_categories(model: str | Path) -> list[dict[str, Any]] | None:
    """Reads the categories of a model, in the order of its classes.

    Args:
        model: SavedModel folder, or an argument of `load_trained`.

    Returns:
        COCO `categories`, as in `TrainedDetector`; None: a model of another tool, without this file.

    Raises:
        DataError: the file is damaged.
    """
    path = _description(model, LABELS_JSON)
    return None if path is None else _read_categories(path)


def _read_categories(path: str) -> list[dict[str, Any]]:
    content = read_json(path)
    categories = content if isinstance(content, list) else [content]
    check_categories(categories, where=path)
    return categories


def read_exported_from(model: str | Path) -> ExportedFrom | None:
    """Returns the training step and kind of a model's weights.

    Args:
        model: SavedModel folder, or an argument of `load_trained`.

    Returns:
        None: a model of another tool, or an old one without this file.

    Raises:
        DataError: a file is damaged.
    """
    path = join(model, EXTRA_FILES, EXPORTED_FROM_JSON)
    if exists(path):
        what = "the step and weights of an exported model"
        return parse_file(_EXPORTED_FROM, path, what=what, remedy="Export or copy the model again.")
    if not is_described(model) or exists(join(model, EXTRA_FILES)):
        return None
    files = locate_weights(model)
    if files.saved_model is not None:
        return read_exported_from(files.saved_model)
    return _origin(_checkpoint_source(files.prefix, read_model_config(model), "auto"))
