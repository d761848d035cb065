"""The upload order of a training run's files to Cloud Storage: a kill leaves a state to resume from."""

from schemas.artifacts import BEFORE_DECAY, BEST, CHECKPOINTS, HISTORY_JSON, METRICS_JSON, VALIDATION

# After all other files, in this order: a file is uploaded after the files it refers to, and the results of
# an evaluation before the next checkpoint, because a run resumed from that would not have them.
UPLOADED_LAST = (
    f"{BEFORE_DECAY}/*.index",
    f"{VALIDATION}/{BEST}/*.index",
    f"{VALIDATION}/{BEST}/{METRICS_JSON}",
    f"{VALIDATION}/{HISTORY_JSON}",
    f"{CHECKPOINTS}/*.index",
    f"{CHECKPOINTS}/checkpoint",
)
