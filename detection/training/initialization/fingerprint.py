"""What tells whether files of first weights have changed."""

import hashlib
from pathlib import Path

from detection.training.initialization.locate import locate_weights


def weights_fingerprint(*, checkpoint: str | None, backbone_weights: str | None) -> str:
    """A name for the content that the two paths mean now; equal for equal content.

    Args:
        checkpoint: see `locate_weights`; of its files the index counts, which holds a
            checksum of every variable.
        backbone_weights: a file, or the name of weights that never change.

    Raises:
        DataError: no weights are at `checkpoint`.
    """
    digest = hashlib.sha256()
    if checkpoint is not None:
        located = locate_weights(checkpoint)
        digest.update(located.prefix.with_name(located.prefix.name + ".index").read_bytes())
        if located.labels is not None:
            digest.update(located.labels.read_bytes())
    if backbone_weights is not None and Path(backbone_weights).is_file():
        with Path(backbone_weights).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]
