"""Sections and trees of their keys."""

import doctest
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from schemas.config import section
from schemas.config.issues import DEFAULT, ISSUE_KINDS, IssuePolicies
from schemas.config.section import Section, merged, nested, section_of, value_at

KEYS = st.text("ab", min_size=1, max_size=2)
TREES = st.recursive(st.integers(0, 3), lambda inner: st.dictionaries(KEYS, inner, max_size=3), max_leaves=8)


class Inner(Section):
    size: int = 1
    names: dict[str, int] = Field(default={})


class Outer(Section):
    inner: Inner = Inner(size=2, names={"a": 1})
    maybe: Inner | None = None
    word: str = "x"


def test_the_examples_of_the_docstrings() -> None:
    assert doctest.testmod(section).failed == 0


def test_a_change_keeps_what_it_does_not_name() -> None:
    assert Outer().changed({"inner": {"size": 5}}).inner == Inner(size=5, names={"a": 1})
    assert Outer().changed({"inner": {"names": {"b": 2}}}).inner.names == {"b": 2}, "a mapping is a value"
    assert Outer().changed({"maybe": {}}).maybe == Inner()
    assert Outer(maybe=Inner(size=3)).changed({"maybe": {"names": {}}}).maybe == Inner(size=3)
    assert Outer(maybe=Inner()).changed({"maybe": None}).maybe is None


@pytest.mark.parametrize(
    ("changes", "place"),
    [({"inner": {"sise": 1}}, ("inner", "sise")), ({"inner": {"size": "many"}}, ("inner", "size")), ({"w": 1}, ("w",))],
)
def test_an_error_has_the_place_in_the_tree(changes: dict[str, Any], place: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError) as caught:
        Outer().changed(changes)
    assert [error["loc"] for error in caught.value.errors()] == [place]


def test_an_optional_section_is_one() -> None:
    assert section_of(Inner) is section_of(Inner | None) is Inner
    assert section_of(int | None) is section_of(dict[str, Inner]) is section_of(Inner | Outer) is None


@given(st.dictionaries(KEYS, TREES, max_size=3), st.dictionaries(KEYS, TREES, max_size=3))
def test_merging_is_assigning_each_value(tree: dict[str, Any], changes: dict[str, Any]) -> None:
    result = merged(tree, changes)
    assert merged(tree, {}) == tree
    assert merged(result, changes) == result
    for key, value in changes.items():
        if not isinstance(value, dict):
            assert result[key] == value
    assert {key: value for key, value in tree.items() if key not in changes}.items() <= result.items()


def test_keys_that_share_a_section() -> None:
    tree = nested({"a.b.c": 1, "a.b.d": 2, "e": 3})
    assert tree == {"a": {"b": {"c": 1, "d": 2}}, "e": 3}
    assert [value_at(tree, key) for key in ("a.b.c", "a.b", "a.x.y", "e.f")] == [1, {"c": 1, "d": 2}, None, None]
    assert value_at(Outer(), "inner.size") == 2


def test_the_default_of_policies_spares_what_is_named() -> None:
    policies = IssuePolicies({DEFAULT: "drop", "box_outside": "fix"})
    assert (policies.of("box_outside"), policies.of("image_broken")) == ("fix", "drop")
    assert policies.of("ignored") == ISSUE_KINDS["ignored"].default == "fix", "drop does not replace a correction"
    assert IssuePolicies.model_validate("drop") == IssuePolicies({DEFAULT: "drop"})
    assert {kind: IssuePolicies({}).of(kind) for kind in ISSUE_KINDS} == {
        kind: one.default for kind, one in ISSUE_KINDS.items()
    }
    for word in ("fail", "drop", "fix"):
        assert all(IssuePolicies({DEFAULT: word}).of(kind) in one.allowed for kind, one in ISSUE_KINDS.items())


@pytest.mark.parametrize(
    ("policies", "message"),
    [
        ({"box": "fix"}, "box: no such kind of issue"),
        ({"image_broken": "keep"}, "image_broken = keep: choose from repair, fail, drop"),
        ({DEFAULT: "keep"}, "default = keep: choose from fail, drop, fix"),
    ],
)
def test_policies_that_do_nothing_are_refused(policies: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        IssuePolicies(policies)
