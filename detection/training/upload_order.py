"""The order in which the files of a training go to Cloud Storage: a kill leaves a state to resume from."""

from schemas.artifacts import BEST, CHECKPOINTS, HISTORY_JSON, METRICS_JSON, VALIDATION

# After all other files, in this order: what a file names is there before it, and the results of
# an evaluation before the next checkpoint, from which training would go on without them.
UPLOADED_LAST = (
    f"{VALIDATION}/{BEST}/*.index",
    f"{VALIDATION}/{BEST}/{METRICS_JSON}",
    f"{VALIDATION}/{HISTORY_JSON}",
    f"{CHECKPOINTS}/*.index",
    f"{CHECKPOINTS}/checkpoint",
)
