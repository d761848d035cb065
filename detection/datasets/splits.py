"""The files of a split, and the rules for dividing a data set into splits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from detection.datasets.groups import group_of
from detection.datasets.sampling import hash_fraction, key_hash
from schemas.artifacts import EVAL_SPLIT, TRAIN_SPLIT
from schemas.errors import ConfigError

# From the forms of boxes in COCO files to COCO's own, by the values of `data.coco_boxes`.
BOX_FORMS: dict[str, Callable[[Sequence[float]], list[float]]] = {
    "xywh": list,
    "corners": lambda box: [box[0], box[1], box[2] - box[0], box[3] - box[1]],
    "centers": lambda box: [box[0] - box[2] / 2, box[1] - box[3] / 2, box[2], box[3]],
}


@dataclass(frozen=True)
class SplitFiles:
    """The files of one split.

    annotations: COCO JSON file; or, if `images` is None, a file, folder or pattern
        of TFRecords, which include the images.
    images: folder that `file_name` is relative to, or None.
    keypoints: person_keypoints file to merge by annotation id, or None.
    hash_range: (low, high): the split has the images with
        low <= `hash_fraction` of the group < high; None: all images.
    every: take the first of each `every` of these images, in the order of the file.
    root: folder of the data set; "": the files were named one by one.
    reader: key of `readers.READERS` that makes COCO of `annotations`; "": it is COCO.
    part: the reader's name of the split.
    corners: `data.voc_corners`, for the reader.
    anywhere: whether the reader takes files with labels in any folder.
    group: `data.group`.
    boxes: `data.coco_boxes`, for COCO files.
    notes: notes on the data set for the user, a sentence each.
    """

    annotations: str
    images: str | None
    keypoints: str | None = None
    hash_range: tuple[float, float] | None = None
    every: int = 1
    root: str = ""
    reader: str = ""
    part: str = ""
    corners: str = "auto"
    anywhere: bool = False
    group: str = ""
    boxes: str = "auto"
    notes: tuple[str, ...] = ()

    def holds(self, image: Mapping[str, Any]) -> bool:
        """Returns whether an image, an entry of the annotation file, belongs to this split."""
        return self.hash_range is None or self.holds_name(group_of(image, self.group))

    def holds_name(self, group: str) -> bool:
        """Returns whether the images of a group belong to this split."""
        return self.holds_group(key_hash(group))

    def holds_group(self, group: int) -> bool:
        """Returns whether the images of a group, by the hash of its name, belong to this split."""
        return self.hash_range is None or self.hash_range[0] <= hash_fraction(group) < self.hash_range[1]


@dataclass(frozen=True)
class Division:
    """Rules for dividing a data set's files into splits.

    eval_fraction: fraction of the images for `eval` if there is no file for it.
    ratios: split -> fraction of a data set of one file; empty: no division by ratios.
    sample_1_of_n: take one of every n images, for quick trials; or split -> n, other
        splits complete.
    group: `data.group`, images that stay together.
    """

    eval_fraction: float = 0.1
    ratios: Mapping[str, float] = field(default_factory=dict)
    sample_1_of_n: int | Mapping[str, int] = 1
    group: str = ""

    def apply(self, splits: dict[str, SplitFiles]) -> dict[str, SplitFiles]:
        """Divides one file by a hash of the images' groups: neither added images nor new ids change the others' split.

        Raises:
            ConfigError: `ratios` for a data set of several files, or a sample of an unknown
                split.
        """
        if self.ratios:
            splits = self._by_ratios(splits)
        elif TRAIN_SPLIT in splits and EVAL_SPLIT not in splits:
            splits = splits | _partitions(
                splits[TRAIN_SPLIT], {EVAL_SPLIT: self.eval_fraction, TRAIN_SPLIT: 1 - self.eval_fraction}
            )
        every = self.sample_1_of_n
        if isinstance(every, int):
            every = dict.fromkeys(splits, every)
        for name in every:
            if name not in splits:
                raise ConfigError(
                    f"data.sample_1_of_n names the split {name!r}; splits are {', '.join(sorted(splits))}. Correct it."
                )
        return {name: replace(files, every=every.get(name, 1), group=self.group) for name, files in splits.items()}

    def _by_ratios(self, splits: dict[str, SplitFiles]) -> dict[str, SplitFiles]:
        if len(splits) > 1:
            raise ConfigError(
                f"data.split_ratios divides a data set of one file; this one has {', '.join(sorted(splits))}. "
                "Remove data.split_ratios, or specify one file in data.splits."
            )
        [whole] = splits.values()
        # Train last, so that other splits keep their images when only the fraction of train changes.
        return _partitions(whole, dict(sorted(self.ratios.items(), key=lambda item: item[0] == TRAIN_SPLIT)))


WHOLE = Division()


def _partitions(whole: SplitFiles, fractions: Mapping[str, float]) -> dict[str, SplitFiles]:
    """Partitions one file by adjacent ranges of `hash_fraction`."""
    splits, low = {}, 0.0
    for number, (name, fraction) in enumerate(fractions.items(), start=1):
        high = 1.0 if number == len(fractions) else low + fraction
        splits[name] = replace(whole, hash_range=(low, high))
        low = high
    return splits
