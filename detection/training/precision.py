"""Numeric precision of a run."""

_ALIASES = {"bfloat16": "mixed_bfloat16"}


def dtype_policy(precision: str) -> str:
    """Keras' name for `train.precision`; variables are float32 under all of them."""
    return _ALIASES.get(precision, precision)
