"""D-FINE's network against the numbers of its authors' code: parameters, every part's outputs, boxes and logits."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from detection.models.dfine.decoder import DecoderOutputs
from detection.models.dfine.distributions import bin_distances
from detection.models.dfine.model import DFine, RawOutputs
from detection.models.registry import build_detector
from tests.detection.models.dfine import original
from tests.detection.models.dfine.test_gradients import build, load

CASES = ("n256_eval", "n192x320_eval", "s256_silu_eval", "s160x416_eval")
Case = tuple[DFine, np.ndarray, dict[str, np.ndarray]]


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, oracle_dir: Path) -> Case:
    folder = oracle_dir / "dfine"
    described, arrays, images = original.read_case(folder, request.param)
    detector = build(described, activation="swish" if "silu" in request.param else "relu")
    load(detector, folder, described["weights"])
    np.testing.assert_allclose(images[:, :2, :2], arrays["image_first_pixels"])
    return detector, images, arrays


def _run(detector: DFine, images: np.ndarray) -> tuple[RawOutputs, DecoderOutputs, list[DecoderOutputs]]:
    """The outputs, and those of all layers, with the batch norms of inference."""
    outputs = detector(tf.constant(images))
    queries, sizes = outputs.queries, detector.config.level_sizes
    return outputs, *detector.decoder(queries.content, queries.boxes, outputs.memory, sizes=sizes, training=True)


@pytest.mark.slow
def test_outputs_equal_the_originals(case: Case) -> None:
    detector, images, arrays = case
    outputs, initial, layers = _run(detector, images)
    cells = [height * width for height, width in detector.config.level_sizes]
    finest, *_, coarsest = tf.split(outputs.memory, cells, axis=1)
    last = len(cells) - 2
    parts = {f"encoder.pan_blocks.{last}": coarsest, f"encoder.fpn_blocks.{last}": finest}
    for name, values in parts.items():
        step = int(arrays[f"stats/{name}"][-1])
        np.testing.assert_allclose(np.reshape(values, -1)[::step], arrays[f"sample/{name}"], atol=1e-4, err_msg=name)
    np.testing.assert_array_equal(outputs.queries.indices, arrays["encoder_topk_index"])
    np.testing.assert_allclose(tf.sigmoid(outputs.queries.boxes), arrays["encoder_topk_boxes"], atol=1e-5)
    np.testing.assert_allclose(initial.boxes, arrays["initial_boxes"], atol=1e-5)
    for name, bound in (("logits", 1e-4), ("boxes", 1e-5)):
        expected = arrays[name].reshape(-1, *arrays[name].shape[-3:])  # of all layers, or of the last
        assert len(expected) in (1, len(layers))
        for layer, of_layer in zip(layers[-len(expected) :], expected, strict=True):
            np.testing.assert_allclose(getattr(layer, name), of_layer, atol=bound, err_msg=name)
    corners = np.reshape(np.asarray(layers[-1].corners), [*initial.boxes.shape[:2], -1])
    every = len(corners[0]) // len(arrays["corners_last"][0])
    np.testing.assert_allclose(corners[:, ::every], arrays["corners_last"], atol=1e-4)
    if "rowmajor_boxes_last" in arrays:  # off squares, ours by default
        detector.encoder.attention.transposed_positions = False
        plain = _run(detector, images)[2][-1]
        detector.encoder.attention.transposed_positions = True
        np.testing.assert_allclose(plain.boxes, arrays["rowmajor_boxes_last"], atol=1e-5)
        np.testing.assert_allclose(plain.logits, arrays["rowmajor_logits_last"], atol=1e-4)
        assert np.abs(plain.boxes - layers[-1].boxes).max() > 0.1


@pytest.mark.slow
def test_inference_has_the_last_layer_alone_and_a_blocked_query_does_not_matter() -> None:
    decoder = build_detector("dfine-pico", num_classes=3, image_size=64).decoder
    random = np.random.default_rng(0)
    for variable in decoder.trainable_variables:
        variable.assign(variable.numpy() + random.normal(0.0, 0.05, variable.shape))
    content, other = (tf.constant(random.normal(size=(1, 5, 64)), tf.float32) for _ in range(2))
    boxes = tf.constant(random.normal(size=(1, 5, 4)), tf.float32)
    memory, sizes = tf.constant(random.normal(size=(1, 21, 64)), tf.float32), [(4, 4), (2, 2), (1, 1)]
    initial, layers = decoder(content, boxes, memory, sizes=sizes, training=True)
    again, [last] = decoder(content, boxes, memory, sizes=sizes)
    for one, two in ((initial, again), (layers[-1], last)):
        np.testing.assert_allclose(one.logits, two.logits, atol=1e-6)
        np.testing.assert_allclose(one.boxes, two.boxes, atol=1e-6)
    # The first two queries do not see the others.
    blocked = tf.constant(np.arange(5)[:, None] < 2) & tf.constant(np.arange(5) >= 2)
    changed = tf.concat([content[:, :2], other[:, 2:]], axis=1)
    [seen], [unseen] = (decoder(one, boxes, memory, sizes=sizes, blocked=blocked)[1] for one in (content, changed))
    np.testing.assert_allclose(seen.boxes[:, :2], unseen.boxes[:, :2], atol=1e-6)
    assert np.abs(seen.boxes[:, 2:] - unseen.boxes[:, 2:]).max() > 1e-4


@pytest.mark.parametrize("scale", [4, 8])
def test_distances_of_bins_equal_the_originals(scale: int, oracle_dir: Path) -> None:
    with np.load(oracle_dir / "dfine" / "criterion_small.npz") as arrays:
        expected = arrays[f"code/W_scale{scale}"]
    np.testing.assert_allclose(bin_distances(33, up=0.5, scale=scale), np.ravel(expected), rtol=1e-5, atol=1e-6)
