"""The functions of an exported model: from images to detections, or to the boxes of all anchors."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from detection.images.decode import decode_rgb, decode_rgb_or_blank
from detection.inference.formats.score_curves import MAX_LOGIT, ScoreCurve, ScoreCurves
from detection.input_pipeline.network_input import fit_to_input
from detection.models.detector import Detector, NmsGraph, variables_by_path
from detection.ops.masks import encode_rle, paste_masks
from detection.types import Detections, ImageInfo, RawDetections
from schemas.errors import ConfigError
from schemas.features import ENCODED
from schemas.serving import (
    ANCHOR_INDICES,
    BOXES,
    CLASS_SCORES,
    CLASSES,
    COUNT,
    ENCODED_SIGNATURE,
    EXAMPLE_SIGNATURE,
    EXAMPLES,
    IMAGES,
    KEYPOINT_SCORES,
    KEYPOINTS,
    MASKS,
    OD_API_INPUT,
    PIXEL_SIGNATURE,
    RAW_BOXES,
    RAW_SCORES,
    SCORES,
    VALID,
    WEIGHTS_PART,
)

_INPUTS = "inputs"  # normalised images


class ServingModule(tf.Module):
    """A detector with its signatures.

    Args:
        detector: built detector; its current variables are saved.
        categories: categories of the data set, in the order of the network's classes.  Detections of a
            class without a category (`name` is None) are dropped.
        batch_size: number of images per call of every signature; None: any.
        nms: False: the signatures return the boxes and scores of all anchors, as
            `Detector.raw_detections` does.
        od_api_outputs: use the outputs of the TF Object Detection API's `exporter_lib_v2.py`: all are
            float32, undecodable images raise errors, there is no `valid`, the input of every signature
            is named `input_tensor`, and the loaded object can be called like `serve_images`.
        curves: score curve of each class, in the order of `categories`, applied after non-maximum
            suppression; None: scores are not calibrated.

    Attributes:
        serve_encoded: signature `serving_default`: string [B], encoded images of any size.
            An undecodable image is False in `valid`, has no detections and does not affect the
            other images.
        serve_examples: signature `serving_examples`: string [B], serialized
            `tf.train.Example`s with `image/encoded`; same outputs as `serve_encoded`.
        serve_images: signature `serving_images`: a uint8 batch [B, H, W, 3], RGB.
        detect: from normalized inputs and `ImageInfo` to `Detections` or `RawDetections`: the
            part with static shapes, which compiles with XLA.
    """

    def __init__(
        self,
        detector: Detector,
        categories: Sequence[Mapping[str, Any]],
        *,
        batch_size: int | None = None,
        nms: bool = True,
        od_api_outputs: bool = False,
        curves: ScoreCurves | None = None,
    ) -> None:
        super().__init__(name="detector")
        # Untracked: saving would trace its layers, and write each weight a second time.
        object.__setattr__(self, "_detector", detector)
        # Lists, as converters would treat tensors as inputs.
        self._category_ids = [category["id"] for category in categories]
        self._is_named = [category.get("name", "") is not None for category in categories]
        self._batch_size = batch_size
        self._nms = nms
        self._od_api_outputs = od_api_outputs
        self._curves = None if curves is None else curves.curves
        # Tracked, as all that is saved of it.
        setattr(self, WEIGHTS_PART, variables_by_path(detector.variables))
        # Called by the signatures; a device-dependent implementation is the one of the CPU that traces it.
        self._detect_here = self.detect = self._detect_function(self._detect)
        if detector.capabilities.detects_by_device:
            self.detect = self._detect_function(self._detect_portably)
        images, examples = (OD_API_INPUT, OD_API_INPUT) if od_api_outputs else (IMAGES, EXAMPLES)
        self.serve_encoded = _function(self._serve_encoded, tf.TensorSpec([batch_size], tf.string, name=images))
        self.serve_examples = _function(self._serve_examples, tf.TensorSpec([batch_size], tf.string, name=examples))
        pixels = tf.TensorSpec([batch_size, None, None, 3], tf.uint8, name=images)
        self.serve_images = _function(self._serve_images, pixels)
        if od_api_outputs:
            self.__call__ = self.serve_images

    @property
    def signatures(self) -> dict[str, Any]:
        """The functions of the SavedModel by signature name."""
        return {
            ENCODED_SIGNATURE: self.serve_encoded,
            PIXEL_SIGNATURE: self.serve_images,
            EXAMPLE_SIGNATURE: self.serve_examples,
        }

    def fitted_function(self, nms_graph: NmsGraph) -> Any:
        """Returns the function of model files that do not decode images: LiteRT and ONNX.

        It takes `images`, [B, H, W, 3] in the detector's input size, RGB, 0 to 255, resized
        as by `fit_to_input` and padded with the detector's `pixel_mean`.  Boxes are normalized
        to this input, including the padding.

        Args:
            nms_graph: as for `Detector`.

        Returns:
            A `tf.function` with the outputs of the other signatures except `valid`.
        """

        def serve(images: tf.Tensor) -> dict[str, tf.Tensor]:
            mean, std = self._pixel_statistics()
            inputs = (images - mean) / std
            return self._postprocess(self._network(inputs), inputs, nms_graph)

        return _function(serve, self._fitted_spec(tf.float32))

    def _network(self, inputs: tf.Tensor) -> Any:
        """Returns the raw outputs for normalized inputs, in a file."""
        return self._detector.decode(self._encode(inputs))

    def _encode(self, inputs: tf.Tensor) -> Any:
        """Returns the result of `Detector.encode` for normalized inputs, in a file."""
        return self._detector.encode(inputs)

    def fitted_stages(self, nms_graph: NmsGraph) -> list[Any]:
        """Returns `fitted_function` as two concrete functions: normalization with the network, and post-processing.

        The second takes the outputs of the first by name: only the first is quantized.  Its part of the network is
        `Detector.encode`.
        """
        structure: list[Any] = []

        def network(images: tf.Tensor) -> dict[str, tf.Tensor]:
            # No division: it has no 8-bit kernel.  Scaling first needs no rounding of channel values.
            mean, std = self._pixel_statistics()
            outputs = self._encode(images * (1.0 / std) - mean / std)
            structure.append(outputs)
            return {f"output_{number:02}": output for number, output in enumerate(tf.nest.flatten(outputs))}

        traced = _function(network, self._fitted_spec(tf.float32)).get_concrete_function()

        def finish(**outputs: tf.Tensor) -> dict[str, tf.Tensor]:
            ordered = [outputs[name] for name in sorted(outputs)]
            raw = self._detector.decode(tf.nest.pack_sequence_as(structure[-1], ordered))
            return self._postprocess(raw, ordered[0], nms_graph)

        specs = {
            name: tf.TensorSpec(output.shape, output.dtype, name=name)
            for name, output in traced.structured_outputs.items()
        }
        return [traced, tf.function(finish, autograph=False).get_concrete_function(**specs)]

    def _pixel_statistics(self) -> list[tf.Tensor]:
        detector = self._detector
        return [tf.constant(values, tf.float32) for values in (detector.pixel_mean, detector.pixel_std)]

    def _fitted_spec(self, dtype: tf.DType, name: str = IMAGES) -> tf.TensorSpec:
        return tf.TensorSpec([self._batch_size, *self._detector.image_size, 3], dtype, name=name)

    def _postprocess(self, outputs: Any, batch_of: tf.Tensor, nms_graph: NmsGraph) -> dict[str, tf.Tensor]:
        """Post-processes raw outputs for images that fill the input; `batch_of` has one row per image."""
        batch = self._batch_size or tf.shape(batch_of)[0]
        sizes = tf.tile(tf.constant([self._detector.image_size], tf.float32), [batch, 1])
        info = ImageInfo(original_size=sizes, scale=tf.ones_like(sizes))
        with self._portable(nms_graph):
            named = self._named_outputs(self._suppress(outputs, info), info)
        if nms_graph == "op" and CLASSES in named and named[CLASSES].dtype == tf.int64:
            # LiteRT: the runtimes of phones and the web do not read int64.
            if max(self._category_ids) > tf.int32.max:
                raise ConfigError(
                    f"category id {max(self._category_ids)}: LiteRT files have ids of 32 bits. Export a SavedModel or "
                    "an ONNX file, or train with smaller ids."
                )
            named[CLASSES] = tf.cast(named[CLASSES], tf.int32)
        return named

    @contextlib.contextmanager
    def _portable(self, nms_graph: NmsGraph = "windows") -> Iterator[None]:
        detector = self._detector
        before = detector.portable, detector.nms_graph
        detector.portable, detector.nms_graph = True, nms_graph
        try:
            yield
        finally:
            detector.portable, detector.nms_graph = before

    def _detect_function(self, python_function: Callable[..., Detections | RawDetections]) -> Any:
        """Returns a function of the arguments of `_detect` that is traced once.

        Without an input signature, saving would trace it again for its argument names.
        """
        pair = tf.TensorSpec([self._batch_size, 2], tf.float32)
        specs = [self._fitted_spec(tf.float32, name=_INPUTS), ImageInfo(pair, pair)]
        return tf.function(python_function, input_signature=specs, autograph=False)

    def _serve_encoded(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        if self._od_api_outputs:
            inputs, info = self._fit_each(images, lambda encoded: self._fit(decode_rgb(encoded)))
            return self._named_outputs(self._detect_here(inputs, info), info)

        def fit(encoded: tf.Tensor) -> tuple[tf.Tensor, ImageInfo, tf.Tensor]:
            image, valid = decode_rgb_or_blank(encoded)
            return (*self._fit(image), valid)

        inputs, info, valid = self._fit_each(images, fit, tf.TensorSpec([], tf.bool))
        outputs = self._named_outputs(self._detect_here(inputs, info), info)
        emptied = [name for name in (SCORES, RAW_SCORES, COUNT) if name in outputs]
        emptied += [name for name in (MASKS,) if name in outputs and outputs[name].dtype == tf.string]
        return outputs | {name: _zero_invalid(valid, outputs[name]) for name in emptied} | {VALID: valid}

    def _serve_examples(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        # An example without an image has the outputs of an undecodable image.
        spec = {ENCODED: tf.io.FixedLenFeature([], tf.string, default_value="")}
        images = tf.io.parse_example(examples, spec)[ENCODED]
        return self.serve_encoded(tf.ensure_shape(images, [self._batch_size]))

    def _serve_images(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        inputs, info = self._fit_each(images, self._fit)
        return self._named_outputs(self._detect_here(inputs, info), info)

    def _detect(self, inputs: tf.Tensor, info: ImageInfo) -> Detections | RawDetections:
        return self._suppress(self._detector(inputs, training=False), info)

    def _detect_portably(self, inputs: tf.Tensor, info: ImageInfo) -> Detections | RawDetections:
        with self._portable():
            return self._detect(inputs, info)

    def _suppress(self, outputs: Any, info: ImageInfo) -> Detections | RawDetections:
        if not self._nms:
            return self._detector.raw_detections(outputs, info)
        detector, before = self._detector, self._detector.names_anchors
        detector.names_anchors = self._od_api_outputs
        try:
            detections = detector.detect(outputs, info)
        finally:
            detector.names_anchors = before
        if not all(self._is_named):
            detections = keep_classes(detections, self._is_named)
        return detections if self._curves is None else calibrate(detections, self._curves)

    def _fit(self, image: tf.Tensor) -> tuple[tf.Tensor, ImageInfo]:
        return fit_image(image, self._detector)

    def _fit_each(self, images: tf.Tensor, fit: Any, *more: tf.TensorSpec) -> Any:
        pair = tf.TensorSpec([2], tf.float32)
        spec = (tf.TensorSpec([*self._detector.image_size, 3], tf.float32), ImageInfo(pair, pair), *more)
        return tf.map_fn(fit, images, fn_output_signature=spec)

    def _named_outputs(self, detections: Detections | RawDetections, info: ImageInfo) -> dict[str, tf.Tensor]:
        if isinstance(detections, RawDetections):
            return {RAW_BOXES: detections.boxes, RAW_SCORES: detections.scores}
        outputs = {
            BOXES: detections.boxes,
            SCORES: detections.scores,
            CLASSES: tf.gather(tf.constant(self._category_ids, tf.int64), detections.classes),
            COUNT: detections.num,
        }
        if detections.masks is not None:
            outputs[MASKS] = self._masks(detections, info.original_size)
        if detections.keypoints is not None:
            outputs[KEYPOINTS] = detections.keypoints
        if detections.anchors is not None:
            outputs |= {ANCHOR_INDICES: detections.anchors, CLASS_SCORES: detections.class_scores}
        if self._od_api_outputs:
            if detections.keypoints is not None:
                outputs[KEYPOINTS], outputs[KEYPOINT_SCORES] = (
                    detections.keypoints[..., :2],
                    detections.keypoints[..., 2],
                )
            return {name: tf.cast(values, tf.float32) for name, values in outputs.items()}
        return outputs

    def _masks(self, detections: Detections, sizes: tf.Tensor) -> tf.Tensor:
        """Returns the masks in the format of `mask_output`, as defined in `schemas.serving`."""
        if self._detector.capabilities.mask_output == "crops":
            return detections.masks
        boxes = detections.boxes * tf.concat([sizes, sizes], axis=1)[:, tf.newaxis]
        if self._detector.capabilities.mask_output == "rle":
            return _rle(detections.masks, boxes, detections.num, sizes)
        height, width = tf.unstack(tf.cast(tf.reduce_max(sizes, axis=0), tf.int32))
        return paste_masks(detections.masks, boxes, height=height, width=width)


def fit_image(image: tf.Tensor, detector: Detector) -> tuple[tf.Tensor, ImageInfo]:
    """Returns an image, uint8 [H, W, 3], as an input of a detector; see `fit_to_input`."""
    return fit_to_input(
        image,
        image_size=detector.image_size,
        resizing=detector.resizing,
        mean=detector.pixel_mean,
        std=detector.pixel_std,
    )


def keep_classes(detections: Detections, kept: Sequence[bool]) -> Detections:
    """Drops the detections of some classes and moves up the others in order.

    Args:
        detections: detections of a batch, best first.
        kept: for each class, whether to keep its detections.

    Returns:
        Detections of the same shapes, padded with zeros.
    """
    slots = tf.range(detections.scores.shape[1])
    is_kept = tf.gather(tf.constant(kept), detections.classes) & (slots < detections.num[:, tf.newaxis])
    order = tf.argsort(tf.cast(~is_kept, tf.int32), axis=1, stable=True)
    return _reorder(detections, order, tf.reduce_sum(tf.cast(is_kept, tf.int32), axis=1))


def calibrate(detections: Detections, curves: Sequence[ScoreCurve]) -> Detections:
    """Applies score curves and sorts the detections again; the order within each class stays, and so its AP.

    Args:
        detections: detections of a batch, best first.
        curves: score curve of each class.

    Returns:
        Detections of the same shapes, best first, padded with zeros.
    """
    slopes, offsets = (
        tf.gather(tf.constant([getattr(curve, name) for curve in curves], tf.float32), detections.classes)
        for name in ("slope", "offset")
    )
    scores = detections.scores
    logits = tf.clip_by_value(tf.math.log(scores) - tf.math.log(1.0 - scores), -MAX_LOGIT, MAX_LOGIT)
    calibrated = tf.sigmoid(slopes * logits + offsets)
    count = scores.shape[1]
    # Vectorized kernels round equal inputs differently by position: no score exceeds an earlier one of its class.
    classes = detections.classes
    earlier = (classes[:, :, tf.newaxis] == classes[:, tf.newaxis]) & np.tri(count, dtype=bool)
    calibrated = tf.reduce_min(tf.where(earlier, calibrated[:, tf.newaxis], 1.0), axis=2)
    filled = tf.range(count) < detections.num[:, tf.newaxis]
    _, order = tf.math.top_k(tf.where(filled, calibrated, -1.0), k=count)  # stable
    return _reorder(detections._replace(scores=calibrated), order, detections.num)


def _reorder(detections: Detections, order: tf.Tensor, num: tf.Tensor) -> Detections:
    """Returns the detections in an order, int32 [B, N]; the rows beyond `num`, int32 [B], are zeros."""
    filled = tf.range(detections.scores.shape[1]) < num[:, tf.newaxis]

    def reorder(values: tf.Tensor) -> tf.Tensor:
        mask = filled[(..., *[tf.newaxis] * (values.shape.rank - 2))]
        return tf.where(mask, tf.gather(values, order, batch_dims=1), tf.zeros([], values.dtype))

    rows = {name: values for name, values in detections._asdict().items() if name != "num" and values is not None}
    return detections._replace(num=num, **{name: reorder(values) for name, values in rows.items()})


def _rle(crops: tf.Tensor, boxes: tf.Tensor, num: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
    """Returns the masks [B, N] of boxes in pixels as RLE, each in the size of its image."""
    slots = crops.shape[1]

    def encode(image: tuple[tf.Tensor, ...]) -> tf.Tensor:
        own_crops, own_boxes, count, size = image
        height, width = tf.unstack(tf.cast(size, tf.int32))
        texts = encode_rle(paste_masks(own_crops[:count], own_boxes[:count], height=height, width=width))
        return tf.ensure_shape(tf.pad(texts, [[0, slots - count]], constant_values=""), [slots])

    return tf.map_fn(encode, (crops, boxes, num, sizes), fn_output_signature=tf.TensorSpec([slots], tf.string))


def _function(python_function: Any, spec: tf.TensorSpec) -> Any:
    return tf.function(python_function, input_signature=[spec], autograph=False)


def _zero_invalid(valid: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Replaces the values of invalid images by 0."""
    mask = tf.reshape(valid, [-1] + [1] * (values.shape.rank - 1))
    return tf.where(mask, values, tf.zeros([], values.dtype))
