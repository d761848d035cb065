"""Detections of images in COCO's format, for evaluation, validation, `predict` and drawing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from detection.coco.io.results import results_from_rows
from detection.datasets.annotations.entries import Rows
from detection.datasets.masks import mask_issue
from detection.ops.masks import Rle, rle_of_crop, rle_of_window
from detection.types import EncodedImage
from schemas import serving
from schemas.errors import DataError
from schemas.metrics import IouType

_KEYS = {"segm": "segmentation", "keypoints": "keypoints"}
OUTPUT_OF_IOU_TYPE: Mapping[IouType, str] = {
    "bbox": serving.BOXES,
    "segm": serving.MASKS,
    "keypoints": serving.KEYPOINTS,
}


@dataclass(frozen=True, eq=False)
class Results:
    """The n detections of one or more images; within an image the best come first.

    Drawing (`LoadedDetector.draw`), results files (`coco_results`) and metrics (`detection.coco.evaluate`) take it.

    rows: float64 [n, 7]: image_id, x, y, width, height (pixels), score, category_id.
    masks: n compressed RLEs in the size of the original image; None: the model has none.
    keypoints: float64 [n, K, 3]: x, y (pixels), score; None: the model has none.
    """

    rows: Rows
    masks: list[Rle] | None = None
    keypoints: npt.NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def image_ids(self) -> npt.NDArray[np.int64]:
        """COCO image ids, int64 [n]."""
        return self.rows[:, 0].astype(np.int64)

    @property
    def boxes_xywh(self) -> Rows:
        """COCO boxes, float64 [n, 4]: x, y, width, height in pixels of the image."""
        return self.rows[:, 1:5]

    @property
    def boxes_xyxy(self) -> Rows:
        """Corners of the boxes, float64 [n, 4]: xmin, ymin, xmax, ymax in pixels of the image."""
        return np.concatenate([self.rows[:, 1:3], self.rows[:, 1:3] + self.rows[:, 3:5]], axis=1)

    @property
    def scores(self) -> npt.NDArray[np.float64]:
        """Scores, float64 [n], 0..1."""
        return self.rows[:, 5]

    @property
    def category_ids(self) -> npt.NDArray[np.int64]:
        """Ids of the data set's categories, int64 [n]."""
        return self.rows[:, 6].astype(np.int64)

    def select(self, kept: npt.NDArray[np.bool_]) -> "Results":
        """Returns the detections for which `kept`, bool [n], is True, in their order."""
        return Results(
            rows=self.rows[kept],
            masks=None if self.masks is None else [mask for mask, keep in zip(self.masks, kept, strict=True) if keep],
            keypoints=None if self.keypoints is None else self.keypoints[kept],
        )

    def coco_results(self) -> list[dict[str, Any]]:
        """Returns COCO results with box, score, and mask and keypoints, if any; floats are exact."""
        results = results_from_rows(self.rows)
        keypoints = None if self.keypoints is None else self.keypoints.reshape(len(self), -1).tolist()
        for key, values in zip(_KEYS.values(), (self.masks, keypoints), strict=True):
            for result, value in zip(results, values or (), strict=False):
                result[key] = value
        return results

    def compared_by(self, iou_types: Sequence[IouType], *, where: str = "the model") -> Rows | list[dict[str, Any]]:
        """Returns the detections in the input format of an evaluation with these IoU types.

        For masks and keypoints, each detection also has its box: as in COCOeval, the area of the
        box decides the size range.

        Args:
            iou_types: IoU types of the evaluation.
            where: name of the model in error messages.

        Returns:
            The rows if only boxes are compared, otherwise COCO results.

        Raises:
            DataError: the model has no masks or keypoints.
        """
        for iou_type in iou_types:
            if {"bbox": self.rows, "segm": self.masks, "keypoints": self.keypoints}[iou_type] is None:
                raise lacks_output(iou_type, where=where)
        return self.rows if set(iou_types) == {"bbox"} else self.coco_results()


def joined(results: Sequence[Results]) -> Results:
    """Joins the results of several images by the same model; at least one."""
    masks, keypoints = [one.masks for one in results], [one.keypoints for one in results]
    return Results(
        rows=np.concatenate([one.rows for one in results]),
        masks=None if None in masks else [mask for part in masks for mask in part or ()],
        keypoints=None if any(part is None for part in keypoints) else np.concatenate([*map(np.asarray, keypoints)]),
    )


def lacks_output(iou_type: IouType, *, where: str) -> DataError:
    """Returns the error for a model without the output of an IoU type."""
    return DataError(
        f"{where}: no output {OUTPUT_OF_IOU_TYPE[iou_type]}, which the IoU type {iou_type} needs. Evaluate its boxes "
        "(evaluate.iou_types [bbox]), or a model with that output."
    )


def results_from_outputs(
    outputs: Mapping[str, npt.NDArray[Any]], images: Sequence[EncodedImage], *, with_masks: bool = True
) -> list[Results]:
    """Converts the outputs of a signature to results in pixels of each image.

    Args:
        outputs: `detection_boxes` [B, N, 4] (ymin, xmin, ymax, xmax), normalized; boxes beyond the
            image are clipped, and their masks too, and dropped if nothing is left; `detection_scores` [B, N],
            `detection_classes` [B, N], `num_detections` [B];
            optionally `detection_masks` and `detection_keypoints`, as defined in `schemas.serving`.
            B may exceed the number of images.
        images: the images, in the order of the batch.
        with_masks: False: omit the masks, which saves pasting and encoding.

    Returns:
        The results of each image.

    Raises:
        DataError: a pasted mask is smaller than its image, or an RLE has another number of pixels.
    """
    return [_image_results(outputs, position, image, with_masks) for position, image in enumerate(images)]


def _image_results(outputs: Mapping[str, npt.NDArray[Any]], position: int, image: EncodedImage, masks: bool) -> Results:
    count, size = int(outputs[serving.COUNT][position]), {"height": image.height, "width": image.width}
    clipped = np.clip(outputs[serving.BOXES][position, :count], 0.0, 1.0)
    # Files know the network's input, not the image: their boxes may lie in its padding.
    kept = (clipped[:, 2:] > clipped[:, :2]).all(axis=1)

    def select(name: str) -> npt.NDArray[Any]:
        return outputs[name][position, :count][kept]

    rows = np.empty((kept.sum(), 7))
    rows[:, 0] = image.image_id
    rows[:, 1:5] = xywh_pixels_from_normalised_yxyx(clipped[kept], **size)
    rows[:, 5] = select(serving.SCORES)
    rows[:, 6] = select(serving.CLASSES)
    keypoints = None
    if serving.KEYPOINTS in outputs:
        yxs = select(serving.KEYPOINTS).astype(np.float64)
        keypoints = yxs[..., [1, 0, 2]] * [image.width, image.height, 1.0]
    rles = None
    if masks and serving.MASKS in outputs:
        boxes = xywh_pixels_from_normalised_yxyx(select(serving.BOXES), **size)
        rles = _encode_masks(select(serving.MASKS), boxes, image)
    return Results(rows, rles, keypoints)


def _encode_masks(masks: npt.NDArray[Any], boxes_xywh: Rows, image: EncodedImage) -> list[Rle]:
    """Encodes the masks of an image, crops or pasted, as compressed RLEs; RLEs are unchanged."""
    size = {"height": image.height, "width": image.width}
    if masks.dtype == object:
        return [_check_rle(counts, image) for counts in masks]
    if masks.dtype != np.uint8:
        return [rle_of_crop(crop, box, **size) for crop, box in zip(masks, boxes_xywh, strict=True)]
    if masks.shape[1] < image.height or masks.shape[2] < image.width:
        raise DataError(
            f"{image.name}: the model's masks have {masks.shape[2]}x{masks.shape[1]} pixels, but the image "
            f"{image.width}x{image.height}. Check that the image's recorded size is that of the file."
        )
    return [rle_of_window(mask[: image.height, : image.width], top=0, left=0, **size) for mask in masks]


def _check_rle(counts: bytes, image: EncodedImage) -> Rle:
    rle = {"size": [image.height, image.width], "counts": counts.decode("latin-1")}
    issue = mask_issue(rle, height=image.height, width=image.width)
    if issue is not None:
        raise DataError(
            f"{image.name}: the model's mask does not fit the image of {image.width}x{image.height} pixels: {issue}. "
            "Check that the image's recorded size is that of the file."
        )
    return rle


def xywh_pixels_from_normalised_yxyx(boxes: npt.NDArray[Any], *, height: int, width: int) -> Rows:
    """Converts normalized boxes of an image to COCO boxes, in float64.

    Args:
        boxes: [N, 4] (ymin, xmin, ymax, xmax), min <= max.
        height: height of the image, pixels.
        width: width of the image, pixels.

    Returns:
        float64 [N, 4]: x, y, width, height in pixels.
    """
    ymin, xmin, ymax, xmax = np.asarray(boxes, np.float64).reshape(-1, 4).T
    return np.stack([xmin * width, ymin * height, (xmax - xmin) * width, (ymax - ymin) * height], axis=1)
