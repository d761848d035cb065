"""Weights in TensorFlow's checkpoint files, by the names of the variables."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from detection.storage.literal_paths import literal_path
from detection.training.initialization.checkpoint_names import contents_of
from detection.training.initialization.class_outputs import Category
from detection.training.initialization.locate import locate_weights
from schemas.config.initialization import SourceWeights
from schemas.errors import ConfigError, DataError


class WeightSource:
    """Weights that another training left.

    Three kinds of files are read: ours, whose variables have the path of the model's;
    other object-based checkpoints, by the variables' own names where these tell them
    apart, else by the path of objects; and name-based ones (TF1).

    Args:
        path: see `detection.training.initialization.locate.locate_weights`.
        weights: `raw`, `averaged` (of variables without an average, raw), or `auto`:
            averaged where there are any.
        rename: regular expressions and replacements, applied in turn to the names.

    Attributes:
        prefix: of the checkpoint that is read.
        averages: names of those variables whose average is read.
        categories: that the weights were trained for, in the order of the classes; None: not known.

    Raises:
        DataError: nothing can be read there, two variables get the same name, or the
            weights asked for are not there.
        ConfigError: a replacement that does not fit its expression.
    """

    def __init__(
        self, path: str | Path, *, weights: SourceWeights = "auto", rename: Sequence[tuple[str, str]] = ()
    ) -> None:
        self.prefix, labels = locate_weights(path)
        self.categories = _read_categories(labels)
        try:
            self._reader = tf.train.load_checkpoint(literal_path(self.prefix))
            contents = contents_of(self._reader)
        except (tf.errors.OpError, ValueError) as error:
            raise self._unreadable(error) from error
        if contents.exported and weights != "auto":
            raise DataError(
                f"{self.prefix}: a SavedModel holds one set of weights, as it was exported. "
                "Leave train.init.weights at auto, or name a checkpoint."
            )
        if weights == "averaged" and not contents.averaged:
            raise DataError(f"{self.prefix}: holds no averages. Set train.init.weights=raw or auto.")
        averaged = {} if weights == "raw" else contents.averaged
        names = self._new_names(contents.raw.keys() | averaged.keys(), rename)
        self.averages = frozenset(names[old] for old in averaged)
        self._keys = {names[old]: key for old, key in (contents.raw | averaged).items()}
        shapes = self._reader.get_variable_to_shape_map()
        self.shapes = {name: tuple(shapes[key]) for name, key in self._keys.items()}

    def read(self, name: str) -> np.ndarray:
        """The values of a variable.

        Raises:
            DataError: they cannot be read, or are not all finite.
        """
        try:
            values = np.asarray(self._reader.get_tensor(self._keys[name])).astype(np.float32)
        except tf.errors.OpError as error:
            raise self._unreadable(error) from error
        if not np.isfinite(values).all():
            raise DataError(f"{self.prefix}: {name} is not finite: that training had diverged. Name an earlier one.")
        return values

    def _unreadable(self, error: Exception) -> DataError:
        reason = str(error).strip().partition("\n")[0]
        return DataError(f"{self.prefix}: cannot be read as a checkpoint: {reason}. Copy it again, or name another.")

    def _new_names(self, names: Collection[str], rename: Sequence[tuple[str, str]]) -> dict[str, str]:
        """The names in the file -> what they are called here."""
        new = {name: name for name in sorted(names)}
        for expression, replacement in rename:
            changed = {old: _substitute(expression, replacement, name) for old, name in new.items()}
            if changed == new:
                raise ConfigError(
                    f"train.init.rename: {expression!r} changes no name in {self.prefix}; "
                    f"they are like {min(new.values(), default='nothing')}."
                )
            new = changed
        self._require_different(new)
        return new

    def _require_different(self, names: Mapping[str, str]) -> None:
        firsts: dict[str, str] = {}
        for old, new in names.items():
            if firsts.setdefault(new, old) != old:
                raise DataError(f"{self.prefix}: train.init.rename makes {new} of both {firsts[new]} and {old}.")


def _substitute(expression: str, replacement: str, name: str) -> str:
    try:
        return re.sub(expression, replacement, name)
    except (re.error, IndexError) as error:
        raise ConfigError(f"train.init.rename: {replacement!r} does not fit {expression!r}: {error}.") from None


def _read_categories(labels: Path | None) -> list[Category] | None:
    if labels is None:
        return None
    try:
        told = json.loads(labels.read_text(encoding="utf-8"))
        return [{"id": category["id"], "name": category["name"]} for category in told]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{labels}: cannot be read as the categories of the weights beside it: {error!r}. Copy it again."
        ) from None
