"""Values of users in messages."""

import doctest

from schemas import quoting
from schemas.quoting import LENGTH, printable, quoted


def test_examples() -> None:
    assert doctest.testmod(quoting).failed == 0


def test_quoted_values_are_short_and_printable() -> None:
    values: list[object] = ["x" * 10**7, "\x1b" * 100, "\ud800\n\u202e" * 50, b"\x00" * 1000]
    values += [10**4000, 10**6000, [10**6000], [["y" * 10**6] * 10] * 10, {"z" * 10**6: {1: 2}}, 1e308, None]
    for value in values:
        text = quoted(value)
        assert 0 < len(text) <= LENGTH
        assert text.isprintable()


def test_short_values_are_quoted_as_python_writes_them() -> None:
    for value in (7, -1, 1.5, "dog", 2**53 + 1, 10**30, None, True, [1, 2, 3], {"a": 1}):
        assert quoted(value) == repr(value)


def test_printable_escapes_control_characters_alone() -> None:
    assert printable("Zürich 犬 a\nb") == "Zürich 犬 a\nb"
    assert printable("\x07\x9b\u2028\ud800\x00") == "\\x07\\x9b\\u2028\\ud800\\x00"
