"""Formats of other programs' checkpoints: the class to implement, and the common parts."""

import abc
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from detection.datasets.annotations.coco_categories import COCO_CATEGORIES, COCO_CLASS_COUNTS, coco_classes
from detection.datasets.importers.label_map import LabelMap
from detection.weights.weight_source import WeightSource
from schemas.config.train.initialization import SourceWeights
from schemas.errors import ConfigError, DataError
from schemas.quoting import first_of

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]
Values = npt.NDArray[np.float32]

_LISTED = 5  # max variables in a message


class VariableSource(NamedTuple):
    """Source of the values of a variable.

    names: variables of the checkpoint.
    shapes: their shapes, as required by the network.
    convert: maps their values, in order, to the variable's.
    """

    names: tuple[str, ...]
    shapes: tuple[Shape, ...]
    convert: Callable[..., Values]


def unchanged(values: Values) -> Values:
    """Returns the values: the conversion of a variable with the same values in the checkpoint."""
    return values


class Variables(Protocol):
    """An opened checkpoint; see `WeightSource`."""

    prefix: str
    shapes: dict[str, Shape]
    ema_names: frozenset[str]

    step: int | None

    def read(self, name: str, /) -> Values:
        """Returns the values of a variable."""


class CheckpointFormat(abc.ABC):
    """A checkpoint of another program; a subclass for each family of its detectors.

    Args:
        shapes: shapes of the variables by their names in the checkpoint.
        where: the checkpoint, for errors.

    Attributes:
        title: the program in sentences.
        family: its family of detectors in sentences, with an article.
        config_class: configuration class of the family.
        presets: configurations that can be imported, by name.
        postprocess: fields of `model.postprocess` with which detections are the program's.
        class_bias: name of the variable of class outputs, possibly after a scope in a checkpoint; None: names have no
            common scope.
        object_paths: names in a checkpoint are the paths of objects, not the names of layers.
        options: variables of a checkpoint that are `overrides` here.
        own_rows: class outputs are those of `row_categories`; False: of `class_categories`.
        not_told: fields of `model.overrides` that no checkpoint tells, and what their values mean.
        is_tensorflow: TensorFlow wrote the checkpoints, which trainings read without an import, too.
        names: names in the checkpoint by names of the format.
        read: returns the values of a variable by its name in the checkpoint; whoever opened it sets it.
    """

    title: ClassVar[str]
    family: ClassVar[str]
    config_class: ClassVar[type]
    presets: ClassVar[Mapping[str, Any]]
    postprocess: ClassVar[Mapping[str, Any]]
    class_bias: ClassVar[str | None] = None
    object_paths: ClassVar[bool] = False
    is_tensorflow: ClassVar[bool] = True
    options: ClassVar[Collection[str]] = ()
    own_rows: ClassVar[bool] = False
    not_told: ClassVar[Mapping[str, str]] = {}

    def __init__(self, shapes: Shapes, where: str) -> None:
        self.shapes = shapes
        self.where = where
        self.read: Callable[[str], Values] = _no_values
        self.names = self.names_of(shapes)

    @classmethod
    def opened(cls, checkpoint: str | Path, weights: SourceWeights) -> "Variables":
        """Opens a checkpoint, of names below the network; weights as for `WeightSource`.

        Raises:
            DataError: it cannot be read, is a model of ours, or has no EMA weights.
        """
        source = WeightSource(checkpoint, weights=weights, option="--weights", object_paths=cls.object_paths)
        if source.is_ours:
            raise DataError(
                f"{source.prefix}: a model of Cocoflow, not of another program. Use it directly, or specify another."
            )
        bias = cls.class_bias
        scope = next((name.removesuffix(bias) for name in source.shapes if bias and name.endswith(bias)), "")
        if not scope:
            return source
        return WeightSource(checkpoint, weights=weights, rename=[(f"^{re.escape(scope)}", "")], option="--weights")

    @staticmethod
    def names_of(theirs: Collection[str]) -> Mapping[str, str]:
        """Returns the names in a checkpoint by names of the format, which are the same by default."""
        return {name: name for name in theirs}

    @classmethod
    @abc.abstractmethod
    def structures(cls, config: Any) -> Sequence[object]:
        """Returns the possible structures of a configured network's checkpoints.

        Raises:
            ConfigError: the program has no such network, or it cannot be imported.
        """

    @abc.abstractmethod
    def structure(self) -> object:
        """Returns the structure of the checkpoint's network, which describes the network as a string.

        Raises:
            DataError: not a checkpoint of the family.
        """

    @property
    def is_known(self) -> bool:
        """True if the checkpoint is of the family, or a backbone alone that the format reads."""
        try:
            self.structure()
        except DataError:
            return False
        return True

    @abc.abstractmethod
    def class_count(self, config: Any) -> int | None:
        """Returns the number of classes, without background; None: the checkpoint is only a backbone.

        Raises:
            DataError: the checkpoint and the configuration have different numbers of anchors.
        """

    @abc.abstractmethod
    def sources(self, ours: Shapes, config: Any) -> dict[str, VariableSource]:
        """Returns the sources by path, even if missing in the checkpoint, without variables that it never has.

        Args:
            ours: shapes of the network's variables by path.
            config: configuration of the network.
        """

    def overrides(self, config: Any) -> Mapping[str, Any]:
        """Returns the fields of `model.overrides` with which a detector's network is the program's.

        Raises:
            DataError: not a checkpoint of the family.
        """
        return {}

    @classmethod
    def resize(cls, config: Any) -> Mapping[str, Any]:
        """Returns the fields of `model.resize` with which images are resized as by the program."""
        return {}

    def differences(self, config: Any) -> tuple[str, ...]:
        """Returns sentences on differences between the networks."""
        return ()

    def categories(self, categories: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Completes the categories of the class outputs.

        Raises:
            DataError: they do not fit.
        """
        return categories

    def shape(self, name: str) -> Shape:
        """Returns the shape of a variable, by its name of the format; (): it is missing."""
        return self.shapes.get(self.names.get(name, ""), ())

    def source(self, name: str, shape: Shape, convert: Callable[..., Values] = unchanged) -> VariableSource:
        """Returns the source with one variable, by its name of the format."""
        return VariableSource((self.names.get(name, name),), (shape,), convert)

    def require_variant(self, config: Any, name: str) -> None:
        """Requires that the checkpoint's network is like the configured one; `name`: its detector.

        Raises:
            DataError: it is not; the message names the variant of the checkpoint.
        """
        found, expected = self.structure(), self.structures(config)
        if found in expected:
            return
        alike = [other for other, preset in self.presets.items() if found in self.structures(preset)]
        if alike:
            names = " or ".join(alike)
            raise DataError(f"{self.where}: the checkpoint is of {names}, not of {name}. Pass --model {names}.")
        raise DataError(
            f"{self.where}: the checkpoint is of no known variant: it has {found}; {name} has {expected[0]}. "
            "Pass the fields of its configuration with --set model.overrides.FIELD=VALUE."
        )

    @classmethod
    def require_backbone(cls, config: Any, networks: str) -> None:
        """Requires the backbone of one of the presets; `networks`: the title of these, for the error.

        Raises:
            ConfigError: it has another one.
        """
        known = dict.fromkeys(preset.backbone.name for preset in cls.presets.values())
        if config.backbone.name not in known:
            raise ConfigError(
                f"model.overrides.backbone.name = {config.backbone.name}: of {networks}, those with {', '.join(known)} "
                f"can be imported. Pass --model {' or '.join(cls.presets)}."
            )

    def require_variables(self, axes: Mapping[str, int], start: str, advice: str = "") -> None:
        """Requires the variables that identify a network.

        Args:
            axes: their numbers of axes, by names of the format.
            start: start of the message, such as `not a checkpoint of a RetinaNet:`.
            advice: further sentence of the message, after a space.

        Raises:
            DataError: a variable is missing, or has another number of axes.
        """
        missing = [name for name, count in axes.items() if len(self.shape(name)) != count]
        if missing:
            raise DataError(
                f"{self.where}: {start} {some(missing)} is missing or has another number of axes. Examples of its "
                f"variables: {some(sorted(self.shapes))}.{advice}"
            )


def _no_values(name: str) -> Values:
    raise AssertionError(f"{name}: only structures are compared")


def unused_variables(sources: Mapping[str, VariableSource], theirs: Shapes, *, where: str) -> tuple[str, ...]:
    """Requires the variables that a network needs, and returns the names of the others.

    Args:
        sources: sources of the network's variables by path.
        theirs: shapes by the names in the checkpoint.
        where: the checkpoint.

    Raises:
        DataError: a variable is missing in the checkpoint, or has another shape; the message names
            variables of both sides.
    """
    required = {name: shape for one in sources.values() for name, shape in zip(one.names, one.shapes, strict=True)}
    unused = tuple(name for name in theirs if name not in required)
    missing = [name for name in required if name not in theirs]
    other = [
        f"{name} {list(theirs[name])} instead of {list(shape)}"
        for name, shape in required.items()
        if name in theirs and theirs[name] != shape
    ]
    if missing or other:
        issues = (("missing", missing), ("with another shape", other), ("without a counterpart", unused))
        listed = "; ".join(f"{len(items)} {what}: {some(items)}" for what, items in issues if items)
        raise DataError(f"{where}: the variables do not match: {listed}. Check --model and --set model.overrides.")
    return unused


def class_categories(count: int, label_map: LabelMap | None) -> list[dict[str, Any]]:
    """Returns the categories of the class outputs: class i is the id i + 1; background is not a class.

    Args:
        count: number of classes.
        label_map: names by id; None: COCO's categories for 90 classes, else the id as name.

    Returns:
        A category per class; `name` is None for an id without a category.

    Raises:
        DataError: the label map has an id outside of 1..count.
    """
    if label_map is None:
        if count == COCO_CLASS_COUNTS[0]:
            return coco_classes(count)
        return [{"id": number, "name": str(number)} for number in range(1, count + 1)]
    entries = {entry["id"]: entry for entry in label_map.categories}
    beyond = [number for number in entries if not 1 <= number <= count]
    if beyond:
        raise DataError(
            f"{label_map.source}: id {beyond[0]} is outside of 1 to {count}, the ids of the checkpoint's class "
            "outputs. Pass the label map of its training."
        )
    return [entries.get(number, {"id": number, "name": None}) for number in range(1, count + 1)]


def row_categories(count: int, label_map: LabelMap | None) -> list[dict[str, Any]]:
    """Returns the categories of class outputs without rows for unused ids, or with a row for each id from 0.

    Args:
        count: number of classes.
        label_map: as many categories, in the order of their ids; or fewer, whose ids are the rows.  None: COCO's
            categories for 80 classes, else as in `class_categories`.

    Raises:
        DataError: the label map fits neither way.
    """
    if label_map is None:
        coco = [{"id": number, "name": name} for number, name in COCO_CATEGORIES.items()]
        return coco if count == len(coco) else class_categories(count, None)
    entries = {entry["id"]: entry for entry in label_map.categories}
    if len(entries) == count:
        return [entries[number] for number in sorted(entries)]
    if len(entries) > count or not 0 <= min(entries) <= max(entries) < count:
        raise DataError(
            f"{label_map.source}: {len(entries)} categories of ids {min(entries)} to {max(entries)}, but the file has "
            f"{count} classes. Pass the label map of its training."
        )
    return [entries.get(number, {"id": number, "name": None}) for number in range(count)]


def count_of(expression: str, names: Collection[str]) -> int:
    """Returns 1 + the largest number that the expression's group matches; 0 if no name matches."""
    matches = (re.fullmatch(expression, name) for name in names)
    return max((int(match[1]) + 1 for match in matches if match), default=0)


def some(names: Sequence[str]) -> str:
    """Returns the first few names, and the number of the others."""
    return first_of(names, _LISTED)
