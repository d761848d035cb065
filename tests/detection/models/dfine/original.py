"""D-FINE's weights by the oracle's rule, under our names: a table of its own, beside the product's importer."""

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

_NORM = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
_DENSE = {"weight": "kernel", "bias": "bias"}
_PATTERNS: tuple[tuple[str, str], ...] = (
    # Backbone.
    (r"backbone\.stem\.stem", "hgnetv2-b0/stem_"),
    (r"backbone\.stages\.0\.", "hgnetv2-b0/stage_1_"),
    (r"backbone\.stages\.1\.", "hgnetv2-b0/stage_2_"),
    (r"backbone\.stages\.2\.", "hgnetv2-b0/stage_3_"),
    (r"backbone\.stages\.3\.", "hgnetv2-b0/stage_4_"),
    (r"(?<=stage_\d_)blocks\.0\.", "block_1/"),
    (r"(?<=stage_\d_)blocks\.1\.", "block_2/"),
    (r"(?<=block_\d/)layers\.0\.", "layer_1."),
    (r"(?<=block_\d/)layers\.1\.", "layer_2."),
    (r"(?<=block_\d/)layers\.2\.", "layer_3."),
    (r"(?<=layer_\d)\.conv1\.", "_pointwise."),
    (r"(?<=layer_\d)\.conv2\.", "_depthwise."),
    (r"aggregation\.0", "squeeze"),
    (r"aggregation\.1", "excite"),
    (r"lab\.scale", "scale"),
    (r"lab\.bias", "offset"),
    # Encoder.
    (r"^encoder\.encoder\.0\.layers\.0\.", "encoder/attention/"),
    (r"^encoder\.input_proj\.", "encoder/input_projection_"),
    (r"^encoder\.lateral_convs\.", "encoder/lateral_"),
    (r"^encoder\.downsample_convs\.(\d)\.0\.cv1", r"encoder/downsample_\1_pointwise"),
    (r"^encoder\.downsample_convs\.(\d)\.0\.cv2", r"encoder/downsample_\1_depthwise"),
    (r"^encoder\.fpn_blocks\.(\d)\.", r"encoder/top_down_\1/"),
    (r"^encoder\.pan_blocks\.(\d)\.", r"encoder/bottom_up_\1/"),
    (r"/cv1\.", "/first."),
    (r"/cv4\.", "/last."),
    (r"/cv2\.0\.", "/branch_1/"),
    (r"/cv3\.0\.", "/branch_2/"),
    (r"/cv2\.1\.", "/branch_1_last."),
    (r"/cv3\.1\.", "/branch_2_last."),
    (r"bottlenecks\.0\.", "block_1/"),
    (r"bottlenecks\.1\.", "block_2/"),
    (r"(?<=/block_\d/)conv1\.(?=conv|norm)", "conv3x3."),
    (r"(?<=/block_\d/)conv2\.(?=conv|norm)", "conv1x1."),
    (r"(?<=/branch_\d/)conv1\.", "first."),
    (r"(?<=/branch_\d/)conv2\.", "other."),
    # Decoder.
    (r"^decoder\.decoder\.layers\.(\d)\.", r"decoder/layer_\1/"),
    (r"^decoder\.decoder\.lqe_layers\.(\d)\.reg_conf\.layers\.", r"decoder/quality_\1/layer_"),
    (r"^decoder\.query_pos_head\.layers\.", "decoder/query_positions/layer_"),
    (r"^decoder\.pre_bbox_head\.layers\.", "decoder/initial_boxes/layer_"),
    (r"^decoder\.dec_bbox_head\.(\d)\.layers\.", r"decoder/corners_\1/layer_"),
    (r"^decoder\.dec_score_head\.", "decoder/classes_"),
    (r"^decoder\.enc_output\.proj", "selection/projection"),
    (r"^decoder\.enc_output\.norm", "selection/norm"),
    (r"^decoder\.enc_score_head", "selection/classes"),
    (r"^decoder\.enc_bbox_head\.layers\.", "selection/boxes/layer_"),
    (r"^decoder\.denoising_class_embed\.weight", "class_embedding"),
    (r"gateway\.gate", "gate"),
    (r"gateway\.norm", "norm_gate"),
    (r"cross_attn\.sampling_offsets", "offsets"),
    (r"cross_attn\.attention_weights", "weights"),
    (r"self_attn\.out_proj", "self_attention/output"),
    (r"self_attn\.in_proj_", "self_attention/in_proj."),
    (r"/linear(\d)", r"/linear_\1"),
    (r"(?<=attention/)norm(\d)", r"norm_\1"),
    (r"(?<=layer_\d/)norm1", "norm_attention"),
    (r"(?<=layer_\d/)norm3", "norm_output"),
)
_NOT_WEIGHTS = re.compile(r".*(num_batches_tracked|num_points_scale|anchors|valid_mask|\.up|reg_scale)")


def load_rule(folder: Path) -> ModuleType:
    """The program that computes the weights and the images of the oracle from names and seeds."""
    spec = importlib.util.spec_from_file_location("make_weights", folder / "make_weights.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def weights(folder: Path, file: str) -> dict[str, np.ndarray]:
    """Values of the oracle's rule by our paths."""
    rule, meta = load_rule(folder), json.loads((folder / file).read_text())
    named: dict[str, np.ndarray] = {}
    for name, shape, _ in meta["variables"]:
        if not _NOT_WEIGHTS.fullmatch(name):
            for path, value in _ours(name, rule.rule(name, tuple(shape), meta)):
                assert path not in named
                named[path] = value
    return named


def paths_of(name: str, folder: Path, file: str) -> list[str]:
    """Our paths of a variable of the authors."""
    meta = json.loads((folder / file).read_text())
    shape = next(shape for own, shape, _ in meta["variables"] if own == name)
    return [path for path, _ in _ours(name, np.zeros(shape, np.float32))]


def _ours(name: str, value: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    path = name
    for pattern, here in _PATTERNS:
        path = re.sub(pattern, here, path)
    layer, _, variable = path.rpartition(".")
    if not layer or variable in ("scale", "offset"):
        yield path.replace(".", "/"), value
    elif layer.endswith("in_proj"):
        for part, piece in zip(("query", "key", "value"), np.split(value, 3), strict=True):
            yield f"{layer.removesuffix('in_proj')}{part}/{_DENSE[variable]}", piece.T
    elif value.ndim == 4:
        kind, axes = (
            ("depthwise_conv2d", (2, 3, 0, 1))
            if "depthwise" in layer or layer.endswith("downsample.conv")
            else ("conv2d", (2, 3, 1, 0))
        )
        yield f"{layer.removesuffix('.conv')}/{kind}/kernel", value.transpose(axes)
    elif layer.endswith((".bn", ".norm")):
        yield f"{layer.rpartition('.')[0]}/batch_normalization/{_NORM[variable]}", value
    elif re.search(r"norm(_\w+)?$", layer):
        yield f"{layer}/{_NORM[variable]}", value
    else:
        yield f"{layer}/{_DENSE[variable]}", value.T


def read_case(folder: Path, name: str) -> tuple[dict[str, Any], dict[str, np.ndarray], np.ndarray]:
    """The description of a case, its arrays, and its images."""
    with np.load(folder / f"{name}.npz") as file:
        arrays = dict(file)
    case = json.loads(str(arrays.pop("case")))
    images = load_rule(folder).image(*(case[key] for key in ("image_seed", "batch", "height", "width")))
    return case, arrays, images
