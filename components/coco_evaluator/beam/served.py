"""Beam: keeps the outputs of the evaluated model on a few images, which a pushed model has to repeat."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from components.coco_evaluator.beam.sample import SampleChoice
from detection.analysis.instances import sample_ids
from detection.inference.serving_sample import (
    ServedImage,
    read_serving_sample,
    served_images,
    write_serving_sample,
)
from detection.storage.files import is_dir, list_folder
from detection.storage.paths import join
from detection.types import EncodedImage


@dataclass(frozen=True)
class KeepServed:
    """Writes images of a choice with the model's outputs to files that `read_served` reads.

    choice: images to keep.
    folder: folder for these files alone, shared by all workers and the caller.
    """

    choice: SampleChoice
    folder: str

    def chosen(self, images: Sequence[EncodedImage]) -> list[int]:
        """Returns the positions of the images to keep."""
        return [position for position, image in enumerate(images) if self.choice.holds(image.image_id)]

    def write(self, outputs: Mapping[str, npt.NDArray[Any]], images: Sequence[EncodedImage]) -> None:
        """Keeps images.

        Args:
            outputs: of the model, see `SignatureDetector.outputs`.
            images: the images of the batch; those of other choices are left out.
        """
        places = self.chosen(images)
        if places:
            of_batch = served_images(outputs, images)
            write_serving_sample(join(self.folder, uuid.uuid4().hex), [of_batch[place] for place in places])


def read_served(keep: KeepServed) -> list[ServedImage]:
    """Returns the images of the choice by ascending id; a bundle that was tried again wrote the same ones twice."""
    kept: dict[int, ServedImage] = {}
    if is_dir(keep.folder):
        for name in list_folder(keep.folder):
            if not name.startswith("."):  # the unfinished file of a worker that was killed
                kept |= {image.image_id: image for image in read_serving_sample(join(keep.folder, name))}
    return [kept[image_id] for image_id in sample_ids(kept, keep.choice.count, keep.choice.seed)]
