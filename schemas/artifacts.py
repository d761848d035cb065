"""Names of splits and of the files inside artifacts and run folders."""

TRAIN_SPLIT = "train"
EVAL_SPLIT = "eval"

# Examples artifact, at its root (Split-<name>/ holds TFRecords and nothing else).
DATASET_JSON = "dataset.json"  # {"info", "licenses", "categories", "splits": {name: {"images", "annotations"}}}
QUARANTINE_JSONL = "quarantine.jsonl"  # one JSON object per dropped image or annotation
DATA_REPORT_HTML = "data_report.html"  # what the data set holds and what is wrong with it

# Beside every model.
CONFIG_YAML = "config.yaml"  # the full, resolved configuration
LABELS_JSON = "categories.json"  # the data set's categories, in the order of the network's classes
INIT_REPORT_JSON = "init_report.json"  # what a warm start loaded, and what it left: `InitReport.as_json`

CHECKPOINTS = "checkpoints"  # TensorFlow checkpoints ckpt-<step>
LOGS = "logs"  # TensorBoard summaries
TRAINING_JSON = "training.json"  # {"training": its name, "files": {path: SHA-256}} of a finished one, in the ModelRun
NONFINITE = "nonfinite"  # step-<number>/: batches that gave NaN or infinity
SAVED_MODEL = "saved_model"
VALIDATION = "validation"  # what evaluations while training found: HISTORY_JSON, and in BEST the best checkpoint
FOLLOW = "follow"  # the same, of a process that follows the checkpoints
HISTORY_JSON = "history.json"  # [{"step", "metrics"}], by ascending step
BEST = "best"  # ckpt-<step> and its METRICS_JSON, which tells the step
EXTRA_FILES = "assets.extra"  # inside a SavedModel: files of ours that travel with it
TRAINING_JSON = "training.json"  # in EXTRA_FILES: {"step", "weights"}, see `detection.inference.export.ExportedFrom`

# Evaluation.
METRICS_JSON = "metrics.json"
DETECTIONS_JSON = "detections.json"  # COCO results, by ascending image id
ANALYSIS_JSON = "analysis.json"  # `detection.analysis.analysis_file.Analysis`
REPORT_HTML = "report.html"  # the evaluation for people
BLESSING_JSON = "blessing.json"  # {"blessed", "reasons", "baseline"}

# PushedModel artifact.
POINTER_JSON = "pushed.json"  # {"destination", "version", "model"} in the PushedModel artifact

# The folder of one run.
TRAINING = "training"  # folders that trainings work in, so that one that was killed goes on
SUMMARY_JSON = "summary.json"


def split_dir(split: str) -> str:
    """Folder of a split inside an `Examples` artifact, as TFX names it."""
    return f"Split-{split}"
