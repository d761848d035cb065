"""D-FINE: a backbone, a hybrid encoder, and a decoder of queries, each of which finds at most one object."""

from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from detection.models.backbones.make import freeze_backbone, make_backbone
from detection.models.detector import Capabilities, Detector
from detection.models.dfine.config import DFineConfig
from detection.models.dfine.criterion import (
    Distributions,
    Predictions,
    denoising_terms,
    match_all,
    matched_terms,
    weighted,
)
from detection.models.dfine.decoder import Decoder, DecoderOutputs
from detection.models.dfine.denoising import ClassEmbedding, DenoisingQueries, denoising_queries, draw
from detection.models.dfine.encoder import HybridEncoder
from detection.models.dfine.losses import distillation_weights, query_counts, targets_of
from detection.models.dfine.matching import Objects, corners_of, union_of
from detection.models.dfine.queries import Queries, QuerySelection
from detection.models.heads.postprocess import clipped_to_image, normalize_boxes, picked_above, picked_detections
from detection.models.layers.conv import ConvNorm
from detection.ops.replicas import sum_over_replicas
from detection.types import Detections, ImageInfo, Labels, RawDetections
from schemas.errors import ConfigError


class RawOutputs(NamedTuple):
    """Outputs of `DFine.call`.

    memory: [B, T, C], the cells of all levels for the decoder.
    queries: the selected cells.
    last: logits and boxes of the last layer; None in training, where `losses` runs the decoder.
    seed: int32 [2], of the denoising queries; None: none.
    """

    memory: tf.Tensor
    queries: Queries
    last: DecoderOutputs | None
    seed: tf.Tensor | None


class DFine(Detector):
    """The detector; see `Detector`.

    Raises:
        ConfigError: unknown backbone, or levels that do not fit it.
    """

    config: DFineConfig

    def __init__(self, *, config: DFineConfig, num_classes: int, name: str, dtype: Any = None):
        super().__init__(config=config, num_classes=num_classes, name=name, dtype=dtype)
        batch_norm, decoder = config.batch_norm.arguments, config.decoder
        self.capabilities = Capabilities(count_shape=(3 + self._num_queries,), suppresses=False)
        self.backbone = make_backbone(
            config.backbone,
            activation=None,
            batch_norm=batch_norm,
            levels=config.levels,
            recompute=config.gradient_checkpointing,
            dtype=self.dtype_policy,
        )
        filters = self.backbone.level_filters[config.min_level - 1 : config.max_level]
        if len(filters) < len(config.levels):
            raise ConfigError(
                f"model.overrides.max_level = {config.max_level}: {config.backbone.name} has fewer levels."
            )
        self.encoder = HybridEncoder(config.encoder, filters, batch_norm=batch_norm, dtype=self.dtype_policy)
        self.projections: list[ConvNorm] = []
        width = config.encoder.filters
        if width != decoder.filters:
            plain: dict[str, Any] = {"activation": None, "batch_norm": batch_norm, "dtype": self.dtype_policy}
            self.projections = [
                ConvNorm(width, decoder.filters, 1, name=f"decoder_projection_{number}", **plain)
                for number in range(len(config.levels))
            ]
        self.selection = QuerySelection(
            decoder.filters,
            num_classes,
            count=decoder.queries,
            activation=decoder.activation,
            name="selection",
            dtype=self.dtype_policy,
        )
        self.decoder = Decoder(decoder, num_classes, dtype=self.dtype_policy)
        self.class_embedding = ClassEmbedding(num_classes, decoder.filters, dtype=self.dtype_policy)
        self._build_layers(filters)

    def _build_layers(self, filters: list[int]) -> None:
        """Creates all variables; their paths start with the part's name, such as `decoder/`."""
        decoder = self.config.decoder
        self.backbone.build((None, None, None, 3))
        self.encoder.build([(None, None, None, channels) for channels in filters])
        for layer in self.projections:
            layer.build((None, None, None, layer.in_filters))
        self.selection.build((None, None, decoder.filters))
        self.decoder.build((None, None, decoder.filters))
        self.class_embedding.build(())
        freeze_backbone(self.backbone, self.config.backbone)
        self.built = True

    @property
    def _sizes(self) -> list[tuple[int, int]]:
        return self.config.level_sizes

    def call(self, images: tf.Tensor, training: bool = False, seed: tf.Tensor | None = None) -> RawOutputs:
        """See `Detector.call`."""
        memory = self._memory(images, training=training, seed=seed)
        if not training:
            return self.decode(memory)._replace(seed=seed)
        return RawOutputs(memory, self.selection(memory, sizes=self._sizes), None, seed)

    def encode(self, images: tf.Tensor) -> tf.Tensor:
        """See `Detector.encode`: backbone and encoder.  Integers would spoil scores, qualities and distributions."""
        return self._memory(self._of_input_size(images), training=False, seed=None)

    def decode(self, encoded: tf.Tensor) -> RawOutputs:
        """See `Detector.decode`."""
        queries = self.selection(encoded, sizes=self._sizes)
        [last] = self.decoder(queries.content, queries.boxes, encoded, sizes=self._sizes)[1]
        return RawOutputs(encoded, queries, last, None)

    def _memory(self, images: tf.Tensor, *, training: bool, seed: tf.Tensor | None) -> tf.Tensor:
        """Returns the cells of all levels, [B, T, C]."""
        levels = self.backbone(self.normalized(images), training=training, seed=seed)
        levels = self.encoder(levels[self.config.min_level - 1 : self.config.max_level], training=training)
        if self.projections:
            levels = [layer(level, training=training) for layer, level in zip(self.projections, levels, strict=True)]
        cells = [tf.reshape(level, [-1, level.shape[1] * level.shape[2], level.shape[3]]) for level in levels]
        return tf.concat(cells, axis=1)

    def named_outputs(self, outputs: RawOutputs) -> dict[str, tf.Tensor]:
        """See `Detector.named_outputs`: `logits` and `boxes` of the last layer."""
        assert outputs.last is not None
        return {"logits": outputs.last.logits, "boxes": outputs.last.boxes}

    def count_positives(self, labels: Labels) -> tf.Tensor:
        """See `Detector.count_positives`: the number of objects, of images, and a one at the most objects of an image.

        Raises:
            ConfigError: images may have more objects than there are queries.
        """
        queries, max_objects = self._num_queries, labels.valid.shape[1]
        if max_objects > queries:
            raise ConfigError(
                f"model.max_instances = {max_objects}: {self.name} has {queries} queries at this model.image_size, "
                "each for at most one object. Decrease it, or increase model.overrides.decoder.queries or the size."
            )
        counts = tf.reduce_sum(tf.cast(labels.valid, tf.int32), axis=1)
        numbers = [tf.reduce_sum(counts), tf.size(counts)]
        most = tf.one_hot(tf.reduce_max(counts), queries + 1)
        return tf.concat([tf.cast(tf.stack(numbers), tf.float32), most], axis=0)

    def losses(
        self, outputs: RawOutputs, labels: Labels, positives: tf.Tensor | None = None, training: bool = False
    ) -> dict[str, tf.Tensor]:
        """See `Detector.losses`: the terms of `matched_terms`, and with a seed those of `denoising_terms`.

        Under gradient accumulation, terms of pairs that depend on the outputs are weighted by the share of the images.
        """
        config, kind = self.config, self.config.loss.class_loss
        objects = self._objects(labels)
        own = self.count_positives(labels)
        here = sum_over_replicas(own)
        totals = here if positives is None else positives
        share = here[1] / totals[1]  # of this micro-batch
        denoising = self._denoising(objects, outputs.seed, totals)
        denoised, matching = self._decode(outputs, denoising)
        encoder = DecoderOutputs(outputs.queries.logits, tf.sigmoid(outputs.queries.boxes), None)
        matches = match_all(matching, encoder, objects)
        union = targets_of(objects, union_of(matches, num_objects=objects.boxes.shape[1]))
        known = union if denoising is None else targets_of(objects, denoising.object_of, denoising.used)
        counts, copies = tf.unstack(sum_over_replicas(tf.stack([query_counts(union), query_counts(known)])))
        count = tf.maximum(totals[0], 1.0)
        distributions = Distributions(config.decoder.bin_up, config.decoder.bin_scale)
        terms = matched_terms(
            matching,
            encoder,
            objects,
            distributions,
            matches=matches,
            union=union,
            count=count,
            union_count=tf.maximum(counts[0], 1.0) / share,
            ddf=distillation_weights(counts, counts) * share,
            kind=kind,
        )
        if denoised is not None and denoising is not None:
            terms |= denoising_terms(
                denoised,
                known,
                distributions,
                count=count * tf.cast(denoising.groups, tf.float32),
                ddf=distillation_weights(copies, counts) * share,
                kind=kind,
            )
        return weighted(terms, config.loss_weights)

    def _objects(self, labels: Labels) -> Objects:
        height, width = self.image_size
        low, high = tf.split(labels.boxes / tf.constant([height, width, height, width], tf.float32), 2, axis=-1)
        centers, sides = (low + high) / 2.0, high - low
        boxes = tf.concat([centers[..., ::-1], sides[..., ::-1]], axis=-1)
        # The objects first, as the matching counts them.
        order = tf.argsort(tf.cast(~labels.valid, tf.int32), axis=1, stable=True)
        return Objects(*(tf.gather(part, order, batch_dims=1) for part in (boxes, labels.classes, labels.valid)))

    def _denoising(self, objects: Objects, seed: tf.Tensor | None, counted: tf.Tensor) -> DenoisingQueries | None:
        copies = self.config.loss.denoising_queries
        if seed is None or not copies:
            return None
        images = tf.shape(objects.boxes)[0]
        numbers = tf.range(self._num_queries + 1)
        return denoising_queries(
            objects,
            draw(seed, images=images, slots=2 * copies, num_classes=self.num_classes),
            copies=copies,
            most=tf.reduce_max(tf.where(counted[2:] > 0.0, numbers, 0)),
            num_classes=self.num_classes,
            num_queries=self._num_queries,
        )

    @property
    def _num_queries(self) -> int:
        return min(self.config.decoder.queries, sum(height * width for height, width in self._sizes))

    def _decode(
        self, outputs: RawOutputs, denoising: DenoisingQueries | None
    ) -> tuple[Predictions | None, Predictions]:
        """Returns the outputs of the denoising queries, and those of the matching ones."""
        content, boxes = (tf.stop_gradient(part) for part in (outputs.queries.content, outputs.queries.boxes))
        blocked = None
        if denoising is not None:
            noisy = tf.cast(self.class_embedding(denoising.classes), content.dtype)
            content, boxes = tf.concat([noisy, content], axis=1), tf.concat([denoising.boxes, boxes], axis=1)
            blocked = denoising.blocked
        initial, layers = self.decoder(
            content, boxes, outputs.memory, sizes=self._sizes, blocked=blocked, training=True
        )
        if denoising is None:
            return None, Predictions(initial, layers)
        slots = denoising.used.shape[0]
        denoised, matching = (
            Predictions(_slots(initial, part), [_slots(layer, part) for layer in layers])
            for part in (slice(None, slots), slice(slots, None))
        )
        return denoised, matching

    def detect(self, outputs: RawOutputs, image_info: ImageInfo) -> Detections:
        """See `Detector.detect`: the best pairs of a query and a class; no box suppresses another."""
        assert outputs.last is not None
        options = self.config.postprocess
        logits, boxes = outputs.last.logits, outputs.last.boxes
        queries, classes = logits.shape[1:]
        count = min(options.max_detections, queries * classes)
        best, places = tf.math.top_k(tf.reshape(logits, [-1, queries * classes]), count)
        picked = picked_above(tf.sigmoid(best), options.score_threshold, options.max_detections)
        pixels = self._pixels(tf.gather(boxes, places // classes, batch_dims=1))
        return picked_detections(picked, clipped_to_image(pixels, image_info), places % classes)

    def raw_detections(self, outputs: RawOutputs, image_info: ImageInfo) -> RawDetections:
        """See `Detector.raw_detections`: those of all queries."""
        assert outputs.last is not None
        boxes = normalize_boxes(self._pixels(outputs.last.boxes), image_info)
        return RawDetections(boxes, tf.sigmoid(outputs.last.logits))

    def _pixels(self, boxes: tf.Tensor) -> tf.Tensor:
        """Maps boxes [..., 4], (cx, cy, w, h) as fractions of the input, to (ymin, xmin, ymax, xmax) in its pixels."""
        height, width = self.image_size
        corners = tf.gather(corners_of(boxes), [1, 0, 3, 2], axis=-1)
        return corners * tf.constant([height, width, height, width], tf.float32)

    @property
    def backbone_variables(self) -> list[Any]:
        """The backbone's variables."""
        return list(self.backbone.variables)

    def output_classes(self, num_classes: int) -> dict[str, np.ndarray]:
        """See `Detector.output_classes`: the heads' last layers, and the embedding of classes."""
        heads = [self.selection.classes, *self.decoder.classes]
        variables: list[keras.Variable] = [variable for head in heads for variable in head.variables]
        return {variable.path: np.arange(num_classes) for variable in (*variables, self.class_embedding.embedding)}


def _slots(outputs: DecoderOutputs, part: slice) -> DecoderOutputs:
    return DecoderOutputs(*(None if values is None else values[:, part] for values in outputs))
