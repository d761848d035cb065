"""Labels of resources on Google Cloud."""

import unicodedata
from typing import Annotated

from pydantic import AfterValidator

MAX_LABELS = 64
_LENGTH = 63
_LETTERS = ("Ll", "Lo")  # lower case, and scripts without case
_OTHERS = ("Nd", "Nl", "No")
_RESERVED = ("vertex-ai-pipelines-run-billing-id",)  # set by Vertex AI


def _labels(labels: dict[str, str]) -> dict[str, str]:
    """Checks the rules of https://cloud.google.com/resource-manager/docs/labels-overview."""
    if len(labels) > MAX_LABELS:
        raise ValueError(f"{len(labels)} labels; a resource has at most {MAX_LABELS}")
    for key, value in labels.items():
        if key in _RESERVED:
            raise ValueError(f"label {key!r} is reserved by Vertex AI; remove it")
        if not key or unicodedata.category(key[0]) not in _LETTERS or not _is_label(key):
            raise ValueError(
                f"label {key!r}: a key starts with a lower-case letter and has at most {_LENGTH} lower-case letters, "
                "digits, _ and -"
            )
        if not _is_label(value):
            raise ValueError(
                f"label {key}: {value!r}: a value has at most {_LENGTH} lower-case letters, digits, _ and -"
            )
    return labels


def _is_label(text: str) -> bool:
    return len(text) <= _LENGTH and all(
        character in "_-" or unicodedata.category(character) in _LETTERS + _OTHERS for character in text
    )


Labels = Annotated[dict[str, str], AfterValidator(_labels)]
