"""Small JSON texts, read and written fast: as Python's `json` does it, but several times sooner."""

import json
from typing import Any

import msgspec

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder()


def parse(text: bytes) -> Any:
    """What `json.loads` makes of a text, NaN, Infinity and half surrogate pairs included.

    Raises:
        ValueError: no JSON in UTF-8.
    """
    try:
        return _DECODER.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return json.loads(text)


def serialize(value: Any) -> bytes:
    """A value as JSON in UTF-8 without spaces; floats read back to the same bits, keys keep their order.

    Raises:
        ValueError: NaN or Infinity somewhere, which JSON does not have.
    """
    try:
        text = _ENCODER.encode(value)
    except (UnicodeEncodeError, RecursionError):  # half a surrogate pair has no UTF-8, only an escape
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    if b"null" in text:  # also what msgspec makes of NaN
        json.dumps(value, allow_nan=False)
    return text
