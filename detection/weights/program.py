"""Other programs whose checkpoints can be imported: what they differ in, and what is the same for all."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from detection.datasets.coco_categories import COCO_CLASS_COUNTS, coco_classes
from detection.datasets.importers.label_map import LabelMap
from schemas.errors import DataError

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]
Values = npt.NDArray[np.float32]

_LISTED = 5  # variables in a message


class VariableSource(NamedTuple):
    """Where the values of a variable come from.

    names: variables of the checkpoint.
    shapes: their shapes, as the network needs them.
    convert: maps their values, in order, to those of the variable.
    """

    names: tuple[str, ...]
    shapes: tuple[Shape, ...]
    convert: Callable[..., Values]


def copied(name: str, shape: Shape) -> VariableSource:
    """Returns the source of a variable with the same values in the checkpoint."""
    return VariableSource((name,), (shape,), lambda values: values)


class SourcesOf(Protocol):
    """Maps variables of a network to those of a checkpoint."""

    def __call__(self, ours: Shapes, *, config: Any, theirs: Shapes) -> dict[str, VariableSource]:
        """Returns the sources by path, whether the checkpoint has them or not; without those that it never has.

        Args:
            ours: shapes of the network's variables by path.
            config: configuration of the network.
            theirs: shapes by the names in the checkpoint, which `structure_of_variables` accepts.
        """


class Program(NamedTuple):
    """A program that wrote checkpoints, and its family of detectors.

    title: the program in sentences.
    family: its family of detectors in sentences, with an article.
    config_class: configuration of a detector of the family.
    presets: configurations by name.
    overrides: maps the shapes in a checkpoint, and `where`, to the fields of `model.overrides` with
        which our network is the program's function.
    postprocess: fields of `model.postprocess`, for the same purpose.
    class_bias: name of the variable of class outputs, before which a checkpoint may have a scope;
        None: names have no common scope.
    structures: maps a configuration to the structures that a checkpoint of it may have.
    structure_of_variables: maps the shapes in a checkpoint to its structure, which as a string
        describes the network; `where` is the checkpoint.  DataError: not a checkpoint of the family.
    class_count: maps the shapes, a configuration and `where` to the number of classes, without
        background; None: the checkpoint holds a backbone alone.  DataError: no whole number.
    sources_of: see `SourcesOf`.
    differences: maps the shapes in a checkpoint and a configuration to sentences about what our network
        computes otherwise.
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


def require_variant(program: Program, shapes: Shapes, config: Any, *, name: str, where: str) -> None:
    """Requires that a checkpoint holds a network like the configured one.

    Args:
        program: the program that wrote the checkpoint.
        shapes: shapes by the names in the checkpoint.
        config: configuration of the network.
        name: name of the detector.
        where: the checkpoint.

    Raises:
        DataError: it does not; the message names the variant that the checkpoint looks like.
    """
    found = program.structure_of_variables(shapes, where=where)
    wanted = program.structures(config)
    if found in wanted:
        return
    alike = [other for other, preset in program.presets.items() if found in program.structures(preset)]
    if alike:
        names = " or ".join(alike)
        raise DataError(f"{where}: the checkpoint looks like {names}, not like {name}. Pass --model {names}.")
    raise DataError(
        f"{where}: the checkpoint looks like no known variant: it has {found}; {name} has {next(iter(wanted))}. "
        "Pass the fields of its configuration with --set model.overrides.FIELD=VALUE."
    )


def unused_variables(sources: Mapping[str, VariableSource], theirs: Shapes, *, where: str) -> tuple[str, ...]:
    """Requires the variables that a network is read from, and returns the names of the others.

    Args:
        sources: sources of the network's variables by path.
        theirs: shapes by the names in the checkpoint.
        where: the checkpoint.

    Raises:
        DataError: a variable is missing in the checkpoint, or has another shape there; the message names
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
        issues = (("missing", missing), ("of another shape", other), ("without a counterpart", unused))
        listed = "; ".join(f"{len(items)} {what}: {some(items)}" for what, items in issues if items)
        raise DataError(f"{where}: the variables do not match: {listed}. Check --model and --set model.overrides.")
    return unused


def class_categories(count: int, label_map: LabelMap | None) -> list[dict[str, Any]]:
    """Returns the categories of the class outputs: class i is the id i + 1, the background is none.

    Args:
        count: number of classes.
        label_map: names by id; None: COCO's categories for 90 classes, else the id as name.

    Returns:
        A category for each class; `name` is None for an id without a category.

    Raises:
        DataError: the label map has an id that is not among 1..count.
    """
    if label_map is None:
        if count == COCO_CLASS_COUNTS[0]:
            return coco_classes(count)
        return [{"id": number, "name": str(number)} for number in range(1, count + 1)]
    entries = {entry["id"]: entry for entry in label_map.categories}
    beyond = [number for number in entries if not 1 <= number <= count]
    if beyond:
        raise DataError(
            f"{label_map.source}: id {beyond[0]} is not among 1 to {count}, the ids of the checkpoint's class "
            "outputs. Pass the label map that it was trained with."
        )
    return [entries.get(number, {"id": number, "name": None}) for number in range(1, count + 1)]


def some(names: Sequence[str]) -> str:
    """Returns the first few names, and the number of the others."""
    return ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")
