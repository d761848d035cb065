"""A detector of any format as a Python object: detections of images, pictures of them, raw outputs of the network."""

import functools
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from PIL import Image

from detection.images.drawing import eight_bit_rgb
from detection.images.files import ImageFileError
from detection.images.inspect import inspect_image
from detection.inference.detection_pictures import MIN_DRAWN_SCORE, draw_results
from detection.inference.detectors import open_detector, open_trained
from detection.inference.formats.model_files import has_model_file, model_folder
from detection.inference.formats.saved_model import SignatureDetector, has_saved_model
from detection.inference.predict import load_image
from detection.inference.restore import TrainedDetector, load_trained, read_model_categories
from detection.inference.results import Results
from detection.models.detector import Detector
from detection.pretrained.detectors import find_model
from detection.types import EncodedImage
from schemas.config.issues import MAX_PIXELS
from schemas.config.train.optimization import WeightsChoice
from schemas.errors import DataError

# A path, local or remote; the bytes of an image file; uint8 [H, W, 3], RGB; or an image of Pillow.
ImageLike = str | Path | bytes | npt.NDArray[np.uint8] | Image.Image


class LoadedDetector:
    """A detector: the result of `detection.load_detector`.

    `predict` gives the detections of images.  Calling the object gives the raw outputs of the network for
    normalized images; it has no anchors then and runs on any size.

    Args:
        categories: COCO categories; `name` is null for a class without a category.
        runner: detects objects in encoded images.
        load_network: loads the network, when it is first used.
    """

    def __init__(
        self,
        categories: Sequence[Mapping[str, Any]],
        runner: SignatureDetector,
        load_network: Callable[[], TrainedDetector],
    ) -> None:
        self.categories = list(categories)
        self._runner = runner
        self._trained = functools.cache(load_network)

    @property
    def names(self) -> dict[int, str]:
        """Category id -> name."""
        return {category["id"]: str(category.get("name") or category["id"]) for category in self.categories}

    @overload
    def predict(self, images: ImageLike, *, image_ids: int = 1, min_score: float = 0.0) -> Results: ...

    @overload
    def predict(
        self, images: Sequence[ImageLike], *, image_ids: Sequence[int] | None = None, min_score: float = 0.0
    ) -> list[Results]: ...

    def predict(
        self,
        images: ImageLike | Sequence[ImageLike],
        *,
        image_ids: int | Sequence[int] | None = None,
        min_score: float = 0.0,
    ) -> Results | list[Results]:
        """Detects objects in an image, or in each of a list of images.

        Args:
            images: path, bytes of an image file, uint8 array [H, W, 3], RGB, or image of Pillow; or a list of them.
                EXIF orientation is not applied: boxes refer to the stored pixels.
            image_ids: COCO id of each image; None: 1, 2, ...
            min_score: min score of the detections, 0..1.

        Returns:
            The detections of the image, best first; for a list, those of each image.

        Raises:
            DataError: an image that cannot be read.
            ValueError: an array of another dtype or shape, or not one id per image.
        """
        if not isinstance(images, Sequence) or isinstance(images, str | bytes):
            ids = None if image_ids is None else np.atleast_1d(image_ids).tolist()
            return self.predict([images], image_ids=ids, min_score=min_score)[0]
        ids = range(1, len(images) + 1) if image_ids is None else np.atleast_1d(image_ids).tolist()
        found = self._runner.detect([_encoded(image, number) for image, number in zip(images, ids, strict=True)])
        return [one.select(one.scores >= min_score) for one in found]

    def draw(self, image: ImageLike, detections: Results, *, min_score: float = MIN_DRAWN_SCORE) -> Image.Image:
        """Draws detections on their image, upright.

        Args:
            image: as for `predict`.
            detections: detections of this image.
            min_score: min score of drawn detections.

        Returns:
            An image in RGB, as large as `image`.

        Raises:
            DataError: the image cannot be read.
        """
        drawn = draw_results(_encoded(image, 1), detections, self.categories, min_score=min_score)
        return Image.fromarray(drawn)

    @property
    def network(self) -> TrainedDetector:
        """The network with its configuration; loaded when it is first used.

        Raises:
            DataError: a model in another format than those of `load_trained`.
        """
        return self._trained()

    @property
    def detector(self) -> Detector:
        """The Keras model, with losses and post-processing; it takes images of its input size."""
        return self.network.detector

    @property
    def pixel_mean(self) -> tuple[float, float, float]:
        """Mean of the network's inputs, RGB, of 0..255 pixels."""
        return self.detector.pixel_mean

    @property
    def pixel_std(self) -> tuple[float, float, float]:
        """Standard deviation of the network's inputs, RGB, of 0..255 pixels."""
        return self.detector.pixel_std

    def __call__(self, images: Any, training: bool = False) -> dict[str, tf.Tensor]:
        """Runs the network.

        Each pyramid level has half the height and width of the finer level, rounded up.
        Every call runs op by op; wrap repeated calls in `tf.function`.

        Args:
            images: float32 [B, H, W, 3], RGB, normalized, of any static size.
            training: use batch statistics.

        Returns:
            Outputs by name, as of `Detector.named_outputs`.

        Raises:
            DataError: see `network`.
            ValueError: the images have another shape.
        """
        images = tf.convert_to_tensor(images, tf.float32)
        if images.shape.rank != 4 or images.shape[3] != 3 or None in images.shape[1:].as_list():
            raise ValueError(
                f"{self.detector.name} takes normalised images [B, H, W, 3] of a static size, not of shape "
                f"{images.shape}."
            )
        # The detector's own call only takes its input size.
        outputs = self.detector.call(images, training=training)
        return self.detector.named_outputs(outputs)


def load(model: str | Path, *, weights: WeightsChoice, batch_size: int) -> LoadedDetector:
    """Loads a detector; see `detection.load_detector`."""
    path = find_model(model)
    folder = model_folder(path)
    if weights == "auto" and (has_saved_model(folder) or has_model_file(folder)):
        runner = open_detector(folder, batch_size=batch_size)
        return LoadedDetector(read_model_categories(folder) or (), runner, lambda: load_trained(folder))
    trained = load_trained(path, weights=weights)
    return LoadedDetector(trained.categories, open_trained(trained, batch_size=batch_size), lambda: trained)


def _encoded(image: ImageLike, image_id: int) -> EncodedImage:
    """Returns an image as the models take it; arrays and images of Pillow are encoded without loss.

    Raises:
        DataError: the image cannot be read.
        ValueError: an array of another dtype or shape.
    """
    if isinstance(image, str | Path):
        return load_image(image_id, str(image))
    name = f"image {image_id}"
    if not isinstance(image, bytes):
        pixels = np.asarray(eight_bit_rgb(image) if isinstance(image, Image.Image) else image)
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
            raise ValueError(f"{name}: {pixels.dtype} {list(pixels.shape)}; expected uint8 [H, W, 3], RGB.")
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "BMP")
        return EncodedImage(image_id, name, file.getvalue(), *pixels.shape[:2])
    try:
        inspected = inspect_image(image, max_pixels=MAX_PIXELS)
    except ImageFileError as error:
        raise DataError(f"{name}: {error.message}") from None
    return EncodedImage(image_id, name, inspected.data, inspected.height, inspected.width)
