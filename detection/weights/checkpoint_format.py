"""Other programs whose checkpoints can be imported: their descriptions, and the common parts."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from detection.datasets.coco_categories import COCO_CLASS_COUNTS, coco_classes
from detection.datasets.importers.label_map import LabelMap
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


def copied(name: str, shape: Shape) -> VariableSource:
    """Returns the source of a variable with the same values in the checkpoint."""
    return VariableSource((name,), (shape,), unchanged)


def unchanged(values: Values) -> Values:
    """Returns the values: the conversion of a variable with the same values in the checkpoint."""
    return values


class SourcesOf(Protocol):
    """Maps variables of a network to those of a checkpoint."""

    def __call__(self, ours: Shapes, *, config: Any, theirs: Shapes) -> dict[str, VariableSource]:
        """Returns the sources by path, even if missing in the checkpoint, without variables that it never has.

        Args:
            ours: shapes of the network's variables by path.
            config: configuration of the network.
            theirs: shapes by the names in the checkpoint, accepted by `structure_of_variables`.
        """


class CheckpointFormat(NamedTuple):
    """A program that writes checkpoints, with one family of detectors.

    title: the program in sentences.
    family: its family of detectors in sentences, with an article.
    config_class: configuration class of the family.
    presets: configurations by name.
    overrides: maps the shapes in a checkpoint, the `config` of the detector, and `where`, to the fields of
        `model.overrides` for a network equivalent to the program's.
    postprocess: fields of `model.postprocess`, for the same purpose.
    class_bias: name of the variable of class outputs, possibly after a scope in a checkpoint;
        None: names have no common scope.
    structures: maps a configuration to the possible structures of its checkpoints.
    structure_of_variables: maps the shapes in a checkpoint to its structure, which describes the
        network as a string; `where` is the checkpoint.  DataError: not a checkpoint of the family.
    class_count: maps the shapes, a configuration and `where` to the number of classes, without
        background; None: the checkpoint is only a backbone.  DataError: not an integer.
    sources_of: function with the signature of `SourcesOf`.
    differences: maps the shapes in a checkpoint and a configuration to sentences on differences
        between the networks.
    resize: maps a configuration to the fields of `model.resize` with which images are resized as by the program.
    categories: completes the categories of the class outputs, given the shapes in a checkpoint and `where`.  DataError:
        they do not fit.
    object_paths: names in a checkpoint are the paths of objects, not the names of layers.
    """

    title: str
    family: str
    config_class: type
    presets: Mapping[str, Any]
    overrides: Callable[..., Mapping[str, Any]]
    postprocess: Mapping[str, Any]
    class_bias: str | None
    structures: Callable[[Any], Collection[object]]
    structure_of_variables: Callable[..., object]
    class_count: Callable[..., int | None]
    sources_of: SourcesOf
    differences: Callable[[Shapes, Any], tuple[str, ...]] = lambda shapes, config: ()
    resize: Callable[[Any], Mapping[str, Any]] = lambda config: {}
    categories: Callable[..., list[dict[str, Any]]] = lambda shapes, categories, where: categories
    object_paths: bool = False


def require_variant(program: CheckpointFormat, shapes: Shapes, config: Any, *, name: str, where: str) -> None:
    """Requires that a checkpoint's network is like the configured one.

    Args:
        program: the program that wrote the checkpoint.
        shapes: shapes by the names in the checkpoint.
        config: configuration of the network.
        name: name of the detector.
        where: the checkpoint.

    Raises:
        DataError: it is not; the message names the variant of the checkpoint.
    """
    found = program.structure_of_variables(shapes, where=where)
    wanted = program.structures(config)
    if found in wanted:
        return
    alike = [other for other, preset in program.presets.items() if found in program.structures(preset)]
    if alike:
        names = " or ".join(alike)
        raise DataError(f"{where}: the checkpoint is of {names}, not of {name}. Pass --model {names}.")
    raise DataError(
        f"{where}: the checkpoint is of no known variant: it has {found}; {name} has {next(iter(wanted))}. "
        "Pass the fields of its configuration with --set model.overrides.FIELD=VALUE."
    )


def require_backbone(config: Any, presets: Mapping[str, Any], *, of: str) -> None:
    """Requires the backbone of one of the presets; `of`: the networks that these are, for the error.

    Raises:
        ConfigError: it has another one.
    """
    known = dict.fromkeys(preset.backbone for preset in presets.values())
    if config.backbone not in known:
        raise ConfigError(
            f"model.overrides.backbone = {config.backbone}: of {of}, those with {', '.join(known)} can be imported. "
            f"Pass --model {' or '.join(presets)}."
        )


def require_variables(
    sized: Mapping[str, int], names: Mapping[str, str], shapes: Shapes, *, start: str, where: str, advice: str = ""
) -> None:
    """Requires the variables that identify a network.

    Args:
        sized: their numbers of axes, by names without scope.
        names: names in the checkpoint by names without scope.
        shapes: shapes by the names in the checkpoint.
        start: start of the message, such as `not a checkpoint of a RetinaNet:`.
        where: the checkpoint.
        advice: further sentence of the message, after a space.

    Raises:
        DataError: a variable is missing, or has another number of axes.
    """
    missing = [name for name, axes in sized.items() if len(shapes.get(names.get(name, ""), ())) != axes]
    if missing:
        raise DataError(
            f"{where}: {start} {some(missing)} is missing or has another number of axes. Examples of its "
            f"variables: {some(sorted(shapes))}.{advice}"
        )


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
    wanted = {name: shape for one in sources.values() for name, shape in zip(one.names, one.shapes, strict=True)}
    unused = tuple(name for name in theirs if name not in wanted)
    missing = [name for name in wanted if name not in theirs]
    other = [
        f"{name} {list(theirs[name])} instead of {list(shape)}"
        for name, shape in wanted.items()
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


def count_of(expression: str, names: Collection[str]) -> int:
    """Returns 1 + the largest number at a place in the names; 0 if no name matches."""
    matches = (re.fullmatch(expression, name) for name in names)
    return max((int(match[1]) + 1 for match in matches if match), default=0)


def some(names: Sequence[str]) -> str:
    """Returns the first few names, and the number of the others."""
    return first_of(names, _LISTED)
