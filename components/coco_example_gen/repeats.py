"""Images that are in a data set twice, found by their pixels."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import tensorflow as tf

from components.coco_example_gen.shards import SeenImage
from detection.datasets.issues import Issue, printable
from detection.datasets.packed_entries import unpack_entries
from detection.storage.atomic import new_path
from schemas import features
from schemas.artifacts import EVAL_SPLIT, TRAIN_SPLIT
from schemas.config.issues import IssuePolicies


def find_repeats(seen: Mapping[str, Sequence[SeenImage]], policies: IssuePolicies) -> dict[str, list[Issue]]:
    """Finds images whose pixels are in their split, or in another split, already.

    The copy that counts as the first is that of the lowest id in a split; over splits
    that of eval, and train's last, so that dropping never makes an evaluation smaller.

    Args:
        seen: the images of each split.
        policies: tell what is done about `image_duplicate` and `image_leak`.

    Returns:
        The issues of each split, in the order of image ids.
    """
    order = sorted(seen, key=lambda name: (name == TRAIN_SPLIT, name != EVAL_SPLIT, name))
    first: dict[str, tuple[str, SeenImage]] = {}
    issues: dict[str, list[Issue]] = {name: [] for name in seen}
    for split in order:
        for image in sorted(seen[split]):
            other_split, other = first.setdefault(image.digest, (split, image))
            if other == image and other_split == split:
                continue
            kind = "image_duplicate" if other_split == split else "image_leak"
            message = (
                f"the same pixels as {other_split}: {printable(other.file_name)} (image {other.image_id}). "
                "Remove one of them, or join their annotations."
            )
            issues[split].append(
                Issue(kind, policies.of(kind), f"{split}: {printable(image.file_name)}", image.image_id, None, message)
            )
    return issues


def drop_images(shards: Iterable[Path], image_ids: set[int]) -> int:
    """Writes shards anew without some images, each atomically.

    Returns:
        The number of annotations that went with them.
    """
    dropped = 0
    sources = {str(image_id).encode() for image_id in image_ids}
    for shard in shards:
        # TFX reads every file of the split's folder.
        beside = shard.parent.parent
        with new_path(shard, beside=beside) as unfinished, tf.io.TFRecordWriter(str(unfinished)) as writer:
            for record in tf.data.TFRecordDataset(str(shard)).as_numpy_iterator():
                values = tf.train.Example.FromString(record).features.feature
                if values[features.SOURCE_ID].bytes_list.value[0] in sources:
                    dropped += len(unpack_entries(values[features.COCO].bytes_list.value[0])[1])
                else:
                    writer.write(record)
    return dropped
