"""Names of splits and of the files inside artifacts and run folders."""

TRAIN_SPLIT = "train"
EVAL_SPLIT = "eval"

# At the root of an Examples artifact (Split-<name>/ holds only TFRecords).
# {"info", "licenses", "categories", "splits": {name: {"images", "annotations", "statistics"}}}; the statistics are
# `detection.datasets.statistics.SplitSummary.as_dict`.
DATASET_JSON = "dataset.json"
ROOT_CATEGORIES = "root_categories"  # key in it: categories of the files that are no classes, as Roboflow writes one
QUARANTINE_JSONL = "quarantine.jsonl"  # one JSON object per dropped image or annotation
GROUPS_JSON = "groups.json"  # split -> name of an image's group -> that of the group its pixels belong to, if another
DATA_REPORT_HTML = "data_report.html"  # statistics and issues of the data set

# Beside every model.
CONFIG_YAML = "config.yaml"  # complete configuration
# Categories of the data set, in the order of the network's classes; `name` is null for a class without a category.
SERVING_DIR = "Format-Serving"  # in a Model artifact: its SavedModel, at the path that TFX uses
LABELS_JSON = "categories.json"
# Since the training was last started: {"steps", "steps_per_second": {"mean", "p50", "max"}, "losses"}, with the speeds
# between progress lines, and the losses of the last one by TensorBoard's tags.
PERFORMANCE_JSON = "performance.json"
INIT_REPORT_JSON = "init_report.json"  # loaded and skipped variables of a warm start: `InitReport.as_json`

IMPORT_JSON = "import.json"  # source, weights and unused variables of an imported model: `ImportedModel.report`

# Describes published weights: {"name", "weights", "origin", "licence", ...}; in a fetched model's folder, and, as
# WEIGHTS_JSON, in EXTRA_FILES of a model that was trained from them; ORIGIN_JSON there in models of before.
ORIGIN_JSON = "origin.json"
WEIGHTS_JSON = "WEIGHTS"

CHECKPOINTS = "checkpoints"  # TensorFlow checkpoints ckpt-<step>
BEFORE_DECAY = "before_decay"  # beside it: the checkpoint before the decay of the learning rate
LOGS = "logs"  # TensorBoard summaries
# Describes a finished training, in the ModelRun: its name, the name of its `series`, and the SHA-256 of its `files`.
TRAINING_JSON = "training.json"
RECORDS_JSON = "records.json"  # {"records": digest} of the training records, beside CHECKPOINTS
NONFINITE = "nonfinite"  # step-<number>/: batches with NaN or infinity
SAVED_MODEL = "saved_model"
VALIDATION = "validation"  # evaluations during training: HISTORY_JSON, and the best checkpoint in BEST
FOLLOW = "follow"  # the same, by a process that follows the checkpoints
HISTORY_JSON = "history.json"  # [{"step", "metrics"}], by ascending step
BEST = "best"  # ckpt-<step> and its METRICS_JSON, with the step and, as `chosen_on`, the images that it was selected on
SAVED_MODEL_FILE = "saved_model.pb"  # written last: a folder without it is not a SavedModel
EXTRA_FILES = "assets.extra"  # inside a SavedModel: our files, copied with it
CHECKSUMS_JSON = "checksums.json"  # in EXTRA_FILES: {path in the SavedModel: SHA-256}, without EXTRA_FILES
EXPORTED_FROM_JSON = "training.json"  # in EXTRA_FILES: {"step", "weights", "chosen_on"}, see `ExportedFrom`
SCORE_CURVES_JSON = "score_curves.json"  # in EXTRA_FILES, of calibrated scores: `inference.formats.score_curves`

# In EXTRA_FILES of a pushed version, added by the push.
WARMUP_REQUESTS = "tf_serving_warmup_requests"  # TFRecord of PredictionLog; TF Serving fixes the name
SCORE_THRESHOLDS_JSON = "score_thresholds.json"  # `detection.inference.score_thresholds.ScoreThresholds`
ROLLBACK_JSON = "rollback.json"  # if a rollback published the version: `pushed_versions.Rollback`

# Keys in our checkpoints.  The first two contain weights, in a dictionary by variable path.
MODEL_PART = "model"  # raw weights
EMA_PART = "ema"  # EMA weights
LOSSES_PART = "losses"  # statistics of the losses, if any; not weights
STEP_PART = "step"  # number of training steps
LITERT_FILE = "model.tflite"  # a detector exported to LiteRT, with MODEL_JSON and EXTRA_FILES beside it
MEDIAPIPE_FILE = "mediapipe.tflite"  # in EXTRA_FILES of a pushed version: the same for MediaPipe Tasks
ONNX_FILE = "model.onnx"  # the same for ONNX
MODEL_JSON = "model.json"  # how to run these, and their SHA-256: `inference.formats.model_files.ModelDescription`
CLIENT_PY = "client.py"  # a program that runs these without Cocoflow: `detection.export.client`

# Evaluation.
METRICS_JSON = "metrics.json"
DETECTIONS_JSON = "detections.json"  # COCO results, by ascending image id
ANALYSIS_JSON = "analysis.json"  # `detection.analysis.analysis_file.Analysis`
REPORT_HTML = "report.html"  # report of the evaluation
BLESSING_JSON = "blessing.json"  # {"blessed", "reasons", "baseline", "checkpoint"}
SERVING_SAMPLE = "serving_sample.npz"  # images and the model's outputs: `detection.inference.serving_sample`

# PushedModel artifact.
# {"destination", "version", "model"} in the PushedModel artifact; in EXTRA_FILES of a pushed version, {"root", "model",
# "run"}: `run.root`, the model's URI, relative to it, and the id of the run.
POINTER_JSON = "pushed.json"
VALIDATION_JSON = "validation.json"  # what was compared before the push: `validate.Validation`

# An artifact that refers to artifacts of earlier runs.
RESOLVED_JSON = "resolved.json"  # {"artifacts": [{"uri", ...}]}, see `components.history`

# The folder of one run.
HISTORY = "history"  # records of executions and runs: see `components.history.store`
TRAINING = "training"  # working folders of trainings, from which a killed one resumes
SUMMARY_JSON = "summary.json"
ARTIFACTS = "artifacts"  # outputs of the components
PUSHED_MODELS = "serving"  # pushed versions, unless `push.directory` names another folder


def split_dir(split: str) -> str:
    """Returns TFX's name of the folder of a split in an `Examples` artifact."""
    return f"Split-{split}"
