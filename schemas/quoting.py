"""Quotes user values in messages: short, on one line, without control characters."""

import json
import reprlib
from collections.abc import Sequence
from typing import Any

LENGTH = 80  # max characters of a quoted value
_MAX_BITS = 256  # of the largest integer that is shown in full

_SHORT = reprlib.Repr()
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = 6
_SHORT.maxlevel = 3
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = LENGTH


def quoted(value: Any) -> str:
    r"""Returns the repr of a value, truncated to `LENGTH` characters, in time independent of its size.

    >>> quoted("two\x1b[31m lines\n")
    "'two\\x1b[31m lines\\n'"
    >>> quoted(10**400)
    'an integer of 1329 bits'
    >>> quoted(list(range(1000)))
    '[0, 1, 2, 3, 4, 5, ...]'
    """
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value[:LENGTH]) + "..." if isinstance(value, str) and len(value) > LENGTH else _written(value)
    return text if len(text) <= LENGTH else f"{text[: LENGTH - 3]}..."


def quoted_json(value: Any) -> str:
    """Returns a value of a JSON file as JSON, truncated to `LENGTH` characters.

    >>> quoted_json({"id": None})
    '{"id": null}'
    """
    try:
        text = json.dumps(value, default=str)
    except ValueError:  # an integer of thousands of digits
        text = f"a {type(value).__name__} that is too long to show"
    return text if len(text) <= LENGTH else f"{text[: LENGTH - 3]}..."


def shortened(text: str, most: int = 4000) -> str:
    """Cuts a long text, and says how much is left out.

    >>> shortened("abcdef", 4)
    'abcd... (2 more characters)'
    """
    return text if len(text) <= most else f"{text[:most]}... ({len(text) - most:,} more characters)"


def printable(text: str) -> str:
    r"""Escapes all control characters and lone surrogates except line feeds.

    >>> printable("a\x1b[2Jb\u202e.jpg")
    'a\\x1b[2Jb\\u202e.jpg'
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character == "\n" else character.encode("unicode_escape").decode()
        for character in text
    )


def one_line(text: object) -> str:
    r"""Escapes like `printable`, and also line feeds.

    >>> one_line("a\nerror: b.jpg")
    'a\\nerror: b.jpg'
    """
    return printable(str(text)).replace("\n", "\\n")


def first_of(names: Sequence[str], most: int) -> str:
    """Lists the first names, and the number of the others.

    >>> first_of(["cat", "dog", "emu"], 2)
    'cat, dog and 1 more'
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def _written(value: Any) -> str:
    try:
        return _SHORT.repr(value)
    except ValueError:  # an integer of thousands of digits inside
        return f"a {type(value).__name__}"
