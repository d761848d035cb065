"""Small JSON texts against Python's own `json`."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter

from detection.storage.json_files import parse, parse_file, serialize
from schemas.errors import DataError

_LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
_TREES = st.recursive(_LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@given(_TREES)
def test_what_is_written_reads_back_to_the_same_bits(tree: object) -> None:
    assert repr(json.loads(serialize(tree))) == repr(tree)
    assert repr(parse(serialize(tree))) == repr(tree)


@given(_TREES)
def test_pythons_own_texts_read_the_same(tree: object) -> None:
    assert repr(parse(json.dumps(tree).encode())) == repr(tree)


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300))
def test_decimals_of_any_length_round_as_pythons(value: object) -> None:
    text = f"[{value}]".encode()
    assert repr(parse(text)) == repr(json.loads(text))


@pytest.mark.parametrize("text", ["NaN", "-Infinity", "1e999", '"\\ud800"', '{"a": 1, "a": 2}', "[" * 300 + "]" * 300])
def test_what_msgspec_refuses_reads_as_pythons(text: str) -> None:
    assert repr(parse(text.encode())) == repr(json.loads(text))


@pytest.mark.parametrize("text", [b"", b"[1,", b"\xff", b"[1] 2", b'{"a" 1}'])
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(text)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_json_does_not_have_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        serialize({"null": None, "deep": [{"x": value}]})


def test_half_a_surrogate_pair_survives() -> None:
    assert json.loads(serialize({"name": "\ud83d"})) == {"name": "\ud83d"}


def test_a_null_is_no_error() -> None:
    assert serialize({"a": None}) == b'{"a":null}'


class _Structure(BaseModel):
    number: float = 0.0
    pair: tuple[float, float] = (0.0, 0.0)
    anything: dict[str, Any] = {}


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "1" + "0" * 400])
def test_a_number_that_is_not_finite_is_named_wherever_it_is(number: str, tmp_path: Path) -> None:
    path = tmp_path / "structure.json"
    places = {"number": "%s", "pair": "[0, %s]", "anything": '{"list": [1, {"deep": %s}]}'}
    for key, value in places.items():
        path.write_text(f'{{"{key}": {value % number}}}')
        if key == "anything" and number.isdecimal():
            assert parse_file(TypeAdapter(_Structure), path, what="one").anything["list"][1]["deep"] == int(number)
            continue
        with pytest.raises(DataError, match=rf"{path}: not one of this version: {key}.*: not a finite number"):
            parse_file(TypeAdapter(_Structure), path, what="one")
