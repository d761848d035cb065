"""D-FINE's network against the numbers of its authors' code: parameters, every part's outputs, boxes and logits."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from detection.models.backbones.hgnet import HGNETS, HGNetV2
from detection.models.dfine.decoder import Decoder, DecoderOptions, DecoderOutputs
from detection.models.dfine.distributions import bin_distances
from detection.models.dfine.encoder import HybridEncoder, HybridEncoderOptions
from detection.models.dfine.queries import Queries, QuerySelection
from tests.detection.models.dfine import original

CLASSES = 80
BATCH_NORM = {"momentum": 0.9, "epsilon": 1e-5}
# By the variables' file: levels, options of the encoder and of the decoder, the table's parameters of the three parts.
VARIANTS: dict[str, tuple[int, dict[str, Any], dict[str, Any], tuple[int, int, int]]] = {
    "variables_n80.json": (
        2,
        {"filters": 128, "feedforward": 512, "blocks": 2, "block_filters": 21},
        {"filters": 128, "feedforward": 512, "layers": 3, "points": (6, 6)},
        (1_850_396, 703_824, 1_228_473),
    ),
    "variables_s80.json": (
        3,
        {"filters": 256, "feedforward": 1024, "blocks": 1, "block_filters": 64},
        {"filters": 256, "feedforward": 1024, "layers": 3, "points": (3, 6, 3)},
        (1_850_396, 4_021_504, 4_449_977),
    ),
}
CASES = ("n256_eval", "n192x320_eval", "s256_silu_eval", "s160x416_eval")


class Network(NamedTuple):
    """The parts of the network."""

    levels: int
    backbone: HGNetV2
    encoder: HybridEncoder
    selection: QuerySelection
    decoder: Decoder

    @property
    def variables(self) -> dict[str, Any]:
        return {variable.path: variable for part in self[1:] for variable in part.variables}


class Outputs(NamedTuple):
    """What the parts return."""

    levels: list[tf.Tensor]
    queries: Queries
    initial: DecoderOutputs
    layers: list[DecoderOutputs]


def build_network(variables: str, *, activation: str = "relu", transposed: bool = True) -> Network:
    levels, encoder_options, decoder_options, _ = VARIANTS[variables]
    backbone = HGNetV2(spec=HGNETS["hgnetv2-b0"], batch_norm=BATCH_NORM, name="hgnetv2-b0")
    filters, width = backbone.level_filters[-levels:], decoder_options["filters"]
    encoder = HybridEncoder(
        HybridEncoderOptions(transposed_positions=transposed, **encoder_options), filters, batch_norm=BATCH_NORM
    )
    selection = QuerySelection(width, CLASSES, count=300, activation=activation, name="selection", dtype=None)
    decoder = Decoder(DecoderOptions(activation=activation, **decoder_options), CLASSES)
    backbone.build((None, None, None, 3))
    encoder.build([(None, None, None, channels) for channels in filters])
    for part in (selection, decoder):
        part.build((None, None, width))
    return Network(levels, backbone, encoder, selection, decoder)


def _run(network: Network, images: np.ndarray) -> Outputs:
    levels = network.encoder(network.backbone(tf.constant(images))[-network.levels :])
    sizes = [(level.shape[1], level.shape[2]) for level in levels]
    memory = tf.concat(
        [tf.reshape(level, [-1, level.shape[1] * level.shape[2], level.shape[3]]) for level in levels], 1
    )
    queries = network.selection(memory, sizes=sizes)
    return Outputs(
        levels, queries, *network.decoder(queries.content, queries.boxes, memory, sizes=sizes, training=True)
    )


@pytest.mark.parametrize("variables", VARIANTS)
def test_parameters_equal_the_originals(variables: str) -> None:
    """Theirs count two fixed numbers of the decoder, and the embedding of classes for denoising."""
    network, (*_, decoder, (of_backbone, of_encoder, of_decoder)) = build_network(variables), VARIANTS[variables]
    counts = [
        sum(int(np.prod(variable.shape)) for variable in part.trainable_variables)
        for part in (network.backbone, network.encoder, network.selection, network.decoder)
    ]
    embedding = (CLASSES + 1) * decoder["filters"]
    assert (counts[0], counts[1], sum(counts[2:]) + embedding + 2) == (of_backbone, of_encoder, of_decoder)


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, oracle_dir: Path) -> tuple[Network, np.ndarray, dict[str, np.ndarray]]:
    folder = oracle_dir / "dfine"
    described, arrays, images = original.read_case(folder, request.param)
    network = build_network(described["weights"], activation="swish" if "silu" in request.param else "relu")
    values = original.weights(folder, described["weights"])
    values.pop("class_embedding")
    variables = network.variables
    assert values.keys() == variables.keys()
    for path, value in values.items():
        variables[path].assign(value)
    np.testing.assert_allclose(images[:, :2, :2], arrays["image_first_pixels"])
    return network, images, arrays


@pytest.mark.slow
def test_outputs_equal_the_originals(case: tuple[Network, np.ndarray, dict[str, np.ndarray]]) -> None:
    network, images, arrays = case
    outputs = _run(network, images)
    last = len(outputs.levels) - 1
    parts = {f"encoder.pan_blocks.{last - 1}": outputs.levels[-1], f"encoder.fpn_blocks.{last - 1}": outputs.levels[0]}
    for name, values in parts.items():
        step = int(arrays[f"stats/{name}"][-1])
        np.testing.assert_allclose(np.reshape(values, -1)[::step], arrays[f"sample/{name}"], atol=1e-4, err_msg=name)
    np.testing.assert_array_equal(outputs.queries.indices, arrays["encoder_topk_index"])
    np.testing.assert_allclose(tf.sigmoid(outputs.queries.boxes), arrays["encoder_topk_boxes"], atol=1e-5)
    np.testing.assert_allclose(outputs.initial.boxes, arrays["initial_boxes"], atol=1e-5)
    for name, bound in (("logits", 1e-4), ("boxes", 1e-5)):
        expected = arrays[name].reshape(-1, *arrays[name].shape[-3:])  # of all layers, or of the last
        assert len(expected) in (1, len(outputs.layers))
        for layer, of_layer in zip(outputs.layers[-len(expected) :], expected, strict=True):
            np.testing.assert_allclose(getattr(layer, name), of_layer, atol=bound, err_msg=name)
    corners = np.reshape(np.asarray(outputs.layers[-1].corners), [*outputs.initial.boxes.shape[:2], -1])
    every = len(corners[0]) // len(arrays["corners_last"][0])
    np.testing.assert_allclose(corners[:, ::every], arrays["corners_last"], atol=1e-4)
    if "rowmajor_boxes_last" in arrays:  # off squares, ours by default
        network.encoder.attention.transposed_positions = False
        plain = _run(network, images).layers[-1]
        network.encoder.attention.transposed_positions = True
        np.testing.assert_allclose(plain.boxes, arrays["rowmajor_boxes_last"], atol=1e-5)
        np.testing.assert_allclose(plain.logits, arrays["rowmajor_logits_last"], atol=1e-4)
        assert np.abs(plain.boxes - outputs.layers[-1].boxes).max() > 0.1


@pytest.mark.slow
def test_inference_has_the_last_layer_alone_and_a_blocked_query_does_not_matter() -> None:
    network = build_network("variables_n80.json")
    random = np.random.default_rng(0)
    for variable in network.decoder.trainable_variables:
        variable.assign(variable.numpy() + random.normal(0.0, 0.05, variable.shape))
    content, other = (tf.constant(random.normal(size=(1, 5, 128)), tf.float32) for _ in range(2))
    boxes = tf.constant(random.normal(size=(1, 5, 4)), tf.float32)
    memory, sizes = tf.constant(random.normal(size=(1, 20, 128)), tf.float32), [(4, 4), (2, 2)]
    initial, layers = network.decoder(content, boxes, memory, sizes=sizes, training=True)
    again, [last] = network.decoder(content, boxes, memory, sizes=sizes)
    for one, two in ((initial, again), (layers[-1], last)):
        np.testing.assert_allclose(one.logits, two.logits, atol=1e-6)
        np.testing.assert_allclose(one.boxes, two.boxes, atol=1e-6)
    # The first two queries do not see the others.
    blocked = tf.constant(np.arange(5)[:, None] < 2) & tf.constant(np.arange(5) >= 2)
    changed = tf.concat([content[:, :2], other[:, 2:]], axis=1)
    [seen], [unseen] = (
        network.decoder(one, boxes, memory, sizes=sizes, blocked=blocked)[1] for one in (content, changed)
    )
    np.testing.assert_allclose(seen.boxes[:, :2], unseen.boxes[:, :2], atol=1e-6)
    assert np.abs(seen.boxes[:, 2:] - unseen.boxes[:, 2:]).max() > 1e-4


@pytest.mark.parametrize("scale", [4, 8])
def test_distances_of_bins_equal_the_originals(scale: int, oracle_dir: Path) -> None:
    with np.load(oracle_dir / "dfine" / "criterion_small.npz") as arrays:
        expected = arrays[f"code/W_scale{scale}"]
    np.testing.assert_allclose(bin_distances(33, up=0.5, scale=scale), np.ravel(expected), rtol=1e-5, atol=1e-6)
