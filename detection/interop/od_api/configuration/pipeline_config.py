"""The TF Object Detection API's pipeline.config, as a configuration of ours.

Fields that are not set have the original's defaults.  Sources: `protos/`, `builders/`, `model_lib_v2.py` (TF2) and
`legacy/trainer.py` (TF1) of the original.
"""

from collections.abc import Callable
from typing import Literal

from detection.interop.conversion import Conversion, Keys, Remark
from detection.interop.od_api.configuration.centernet import CENTERNET_NETWORKS, centernet_keys
from detection.interop.od_api.configuration.faster_rcnn import FASTER_RCNN_NETWORKS, faster_rcnn_keys
from detection.interop.od_api.configuration.other_fields import IGNORED, INSIDE, NO_EFFECT, ONEOFS, UNSUPPORTED
from detection.interop.od_api.configuration.parts import TF2, values_by_key
from detection.interop.od_api.configuration.ssd import SSD_NETWORKS, ssd_keys
from detection.interop.od_api.configuration.tf1 import tf1_keys
from detection.interop.od_api.configuration.training import training_keys
from detection.interop.text_proto import Message, parse_text
from schemas.artifacts import EVAL_SPLIT, TRAIN_SPLIT
from schemas.errors import ConfigError

PIPELINE_CONFIG = "pipeline.config"
# Families of the original, and functions that map their messages to keys.
FAMILIES: dict[str, Callable[[Message], Keys]] = {
    "ssd": ssd_keys,
    "faster_rcnn": faster_rcnn_keys,
    "center_net": centernet_keys,
}
# Detectors here by the types of their feature extractors.
NETWORKS = {**SSD_NETWORKS, **FASTER_RCNN_NETWORKS, **CENTERNET_NETWORKS}
TF1_FAMILIES = ("ssd", "faster_rcnn")
_IGNORED_THERE = "ignored by the original's TF2 trainer, too"
_NOT_NEEDED = "of the original's queues, replicas and evaluations, which are others here"
_OF_REGULARIZATION = tuple(
    f"train.{key}" for key in ("optimizer.weight_decay_exclude", "optimizer.regularizers", "pattern_match")
)
_INPUT_TYPES = ("INPUT_DEFAULT", "TF_EXAMPLE", "TF_SEQUENCE_EXAMPLE")
# IoU type and, besides COCO's, kind of metric; all of these are at an IoU of 0.5.
_METRICS = {
    "coco_detection_metrics": ("bbox", ""),
    "coco_mask_metrics": ("segm", ""),
    "coco_keypoint_metrics": ("keypoints", ""),
    "pascal_voc_detection_metrics": ("bbox", "pascal_voc"),
    "pascal_voc_instance_segmentation_metrics": ("segm", "pascal_voc"),
    "weighted_pascal_voc_detection_metrics": ("bbox", "weighted_pascal_voc"),
    "weighted_pascal_voc_instance_segmentation_metrics": ("segm", "weighted_pascal_voc"),
    "oid_V2_detection_metrics": ("bbox", "open_images"),
    "oid_challenge_detection_metrics": ("bbox", "open_images_challenge"),
    "oid_challenge_segmentation_metrics": ("segm", "open_images_challenge"),
    "precision_at_recall_detection_metrics": ("bbox", "precision_at_recall"),
}


def convert_pipeline_config(
    text: str, where: str = PIPELINE_CONFIG, trainer: Literal["tf1", "tf2"] | None = None
) -> Conversion:
    """Converts the text of a pipeline.config.

    Args:
        text: protocol buffer text of a `TrainEvalPipelineConfig`.
        where: name of the file in error messages.
        trainer: the original's trainer: tf1: `legacy/train.py`; None: tf1 for networks of TF1, which have types
            without `_keras`.

    Raises:
        ConfigError: not such a text, or a model that is not supported.
    """
    pipeline = parse_text(text, where, ONEOFS)
    if "model" not in pipeline:
        raise ConfigError(f"{where}: no `model {{ ... }}`. Pass a {PIPELINE_CONFIG} of the TF Object Detection API.")
    model = pipeline.message("model")
    family = model.kind("model", *FAMILIES, reason=f"no such model here; known: {', '.join(FAMILIES)}")
    keys = FAMILIES[family](model.message(family)) if family else {}
    network = dict(keys)
    is_tf1 = trainer == "tf1" if trainer else family in TF1_FAMILIES and _is_of_tf1(model.message(family))
    evaluation = pipeline.message("eval_config")
    train = pipeline.message("train_config")
    keys |= training_keys(train, ema_is_evaluated=evaluation.get("use_moving_averages", False), is_tf1=is_tf1)
    keys |= _data_keys(pipeline) | _evaluation_keys(evaluation)
    if is_tf1:
        if "graph_rewriter" in pipeline:
            pipeline.refuse("graph_rewriter", "trainings have no quantisation here; `export --precision int8` has")
        keys |= tf1_keys(train, network)
    if not train.get("add_regularization_loss", True):
        keys["train.optimizer.weight_decay"] = 0.0
        keys = {key: value for key, value in keys.items() if key not in _OF_REGULARIZATION}
    unsupported: list[Remark] = []
    notes: list[Remark] = []
    for message in pipeline.walk():
        unsupported += message.unsupported
        if network or not message.path.startswith("model"):  # else nobody knows which fields the network has
            unsupported += message.unread(UNSUPPORTED, IGNORED | NO_EFFECT, INSIDE)
        notes += [*message.notes, *message.remarks_on(IGNORED, _NOT_NEEDED if is_tf1 else _IGNORED_THERE)]
    conversion = Conversion(keys, _by_line(unsupported), _by_line(notes))
    if not network:  # a configuration without it would be one of another model
        of_model_first = sorted(conversion.unsupported, key=lambda remark: not remark.field.startswith("model."))
        conversion._replace(unsupported=tuple(of_model_first)).require_supported(where)
    return conversion


def _is_of_tf1(model: Message) -> bool:
    return not model.message("feature_extractor").get("type", "").endswith(TF2)


def _by_line(remarks: list[Remark]) -> tuple[Remark, ...]:
    return tuple(sorted(remarks, key=lambda remark: remark.line or 0))


def _data_keys(pipeline: Message) -> Keys:
    train = pipeline.message("train_input_reader")
    keys = _split_keys(train, TRAIN_SPLIT) if "train_input_reader" in pipeline else {}
    keys["model.max_instances"] = train.get("max_number_of_boxes", 100)
    train.only("num_epochs", 0, reason="records repeat until train.steps here")
    train.only("shuffle", True, reason="training records are shuffled here")
    for number, reader in enumerate(pipeline.messages("eval_input_reader")):
        reader.accept("shuffle", "num_epochs", "max_number_of_boxes")  # every image and object counts once
        if number:
            reason = f"a further eval_input_reader: only {EVAL_SPLIT} is evaluated; run `cocoflow evaluate`"
            reader.refuse("name", reason)
            continue
        found = _split_keys(reader, EVAL_SPLIT)
        label_map = found.get("data.label_map")
        if keys.setdefault("data.label_map", label_map) != label_map:
            reader.refuse("label_map_path", "all splits have one label map here, train_input_reader's")
        keys = found | keys
    samples = {split: keys.pop(key) for split in (TRAIN_SPLIT, EVAL_SPLIT) if (key := f"data.sample.{split}") in keys}
    return keys | ({"data.sample_1_of_n": samples} if samples else {})


def _split_keys(reader: Message, split: str) -> Keys:
    """Returns the keys of an input reader; `data.sample.SPLIT` is its sampling."""
    keys: Keys = {}
    if label_map := reader.get("label_map_path", ""):
        keys["data.label_map"] = label_map
    if (step := reader.get("sample_1_of_n_examples", 1)) > 1:
        keys[f"data.sample.{split}"] = step
    reason = "records are tf.train.Examples here"
    reader.only("input_type", "TF_EXAMPLE", "INPUT_DEFAULT", enum=_INPUT_TYPES, reason=reason)
    kind, reason = "tf_record_input_reader", "read TFRecords, or COCO files as data.root"
    kind = reader.kind("reader", kind, reason=reason)
    paths = reader.message(kind).values("input_path", str) if kind else []
    if len(paths) == 1:
        keys[f"data.splits.{split}.records"] = paths[0]
    elif kind:
        advice = "name one file, folder or pattern, or convert them with `cocoflow to-coco`"
        reader.message(kind).refuse("input_path", f"{len(paths)} paths: {advice}")
    return keys


def _evaluation_keys(evaluation: Message) -> Keys:
    if "keypoint_edge" in evaluation:
        evaluation.note("keypoint_edge", "edges are those of `skeleton` in the data set's categories")
    visualizations = evaluation.get("num_visualizations", 10)
    keys = {
        "batch_size": evaluation.get("batch_size", 1),
        "analysis.visualizations": visualizations,
        "analysis.score": evaluation.get("min_score_threshold", 0.5),
    }
    most = evaluation.get("max_num_boxes_to_visualize", 20)
    if visualizations:
        keys["analysis.max_boxes"] = most
    metrics = evaluation.values("metrics_set", str) or ["coco_detection_metrics"]
    unknown = [name for name in metrics if name not in _METRICS]
    if unknown:
        evaluation.refuse("metrics_set", f"{', '.join(unknown)}: known are {', '.join(_METRICS)}")
    known = [_METRICS[name] for name in metrics if name in _METRICS]
    others = [_precision_at_recall(evaluation) if kind == "precision_at_recall" else kind for _, kind in known if kind]
    sigmas = _oks_sigmas(evaluation)
    if "parameterized_metric" in evaluation:
        known.append(_METRICS["coco_keypoint_metrics"])
    if sigmas:
        keys["oks_sigmas"] = sigmas
    keys |= {"iou_types": list(dict.fromkeys(iou_type for iou_type, _ in known))} if known else {}
    keys |= {"metrics": [f"{kind}_AP50" for kind in dict.fromkeys(others)]} if others else {}
    return {f"evaluate.{key}": value for key, value in keys.items()}


def _oks_sigmas(evaluation: Message) -> dict[str, dict[str, float]]:
    """Returns the sigmas by category and keypoint name, of the categories that have some."""
    sigmas = {}
    for metric in evaluation.messages("parameterized_metric"):
        keypoints = metric.message("coco_keypoint_metrics")
        label = keypoints.get("class_label", "")
        sigmas[label] = values_by_key(keypoints, "keypoint_label_to_sigmas")
    return {label: by_name for label, by_name in sigmas.items() if by_name}


def _precision_at_recall(evaluation: Message) -> str:
    verified = "_verified" if evaluation.get("skip_predictions_for_unlabeled_class", False) else ""
    bounds = {"recall_lower_bound": 0.0, "recall_upper_bound": 1.0}
    low, high = (round(100 * evaluation.get(name, default)) for name, default in bounds.items())
    return f"precision_at_recall{verified}_{low}_{high}"
