"""What a training does not depend on."""

# Keys of `train` that say what a training tells and keeps, not what it learns: a change of
# these goes on with a training that was killed, and takes over the result of one that was not.
WITHOUT_EFFECT = frozenset(
    {"checkpoint_every", "keep_checkpoints", "keep_checkpoint_every_n_hours", "log_every", "profile", "summaries"}
)
