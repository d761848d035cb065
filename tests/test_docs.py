"""The tables of the docs say what the code says."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from schemas import features
from schemas.config import AnalysisConfig, DataConfig, EvaluateConfig, SplitSource, ThresholdsConfig
from schemas.faults import FaultPolicies

ROOT = Path(__file__).parents[1]
TYPES = {"BYTES": "bytes", "INT": "int64", "FLOAT": "float"}  # TFX's name -> ours


def tables(page: str = "docs/data.md") -> dict[tuple[str, ...], list[list[str]]]:
    """Header -> rows, of every table of a page; cells without the marks of code."""
    found: dict[tuple[str, ...], list[list[str]]] = {}
    rows: list[list[str]] = []
    header: list[str] | None = None
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            header = None
        elif header is None:
            header = cells(line)
            rows = found.setdefault(tuple(header), [])
        elif not set(line) <= set("|-"):
            rows.append(cells(line))
    return found


def cells(line: str) -> list[str]:
    return [cell.strip().replace("`", "") for cell in line.strip().strip("|").split("|")]


@pytest.mark.parametrize(("page", "least"), [("docs/data.md", 6), ("docs/evaluation.md", 2), ("docs/tfma.md", 2)])
def test_every_row_has_the_cells_of_its_header(page: str, least: int) -> None:
    assert len(tables(page)) >= least
    for header, rows in tables(page).items():
        assert rows
        assert {len(row) for row in rows} == {len(header)}, header


def test_the_kinds_of_faults() -> None:
    assert tables()["kind", "meaning", "default", "policies"] == [
        [kind, field.description, field.default, ", ".join(FaultPolicies.allowed(kind))]
        for kind, field in FaultPolicies.model_fields.items()
    ]


def test_the_keys_of_data() -> None:
    rows = tables()["key", "values", "default", "meaning"]
    expected = [*described(DataConfig, "data.")]
    at = [row[0] for row in expected].index("data.splits")
    expected[at : at + 1] = described(SplitSource, "data.splits.<name>.")
    on_fault = [key for key, *_ in expected].index("data.on_fault")
    assert rows[on_fault][0] == "data.on_fault"
    del rows[on_fault], expected[on_fault]
    assert rows == expected


def test_the_keys_of_evaluate() -> None:
    rows = tables("docs/evaluation.md")["key", "values", "default", "meaning"]
    expected = described(EvaluateConfig, "evaluate.")
    for name, section in (("thresholds", ThresholdsConfig), ("analysis", AnalysisConfig)):
        at = [row[0] for row in expected].index(f"evaluate.{name}")
        expected[at : at + 1] = described(section, f"evaluate.{name}.")
    assert rows == expected


def described(section: type[BaseModel], prefix: str) -> list[list[str]]:
    """Key, values, default and meaning of each field, as its JSON schema has them."""
    fields = section.model_json_schema()["properties"]
    return [
        [
            f"{prefix}{key}",
            "" if "$ref" in field else values(field),
            "none" if field.get("default") is None else json.dumps(field["default"]),
            field.get("description", "").replace("`", ""),
        ]
        for key, field in fields.items()
    ]


def values(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(values(part) for part in schema["anyOf"] if part["type"] != "null")
    if schema["type"] == "object":
        of = schema["additionalProperties"]
        name = "metric" if "enum" in schema.get("propertyNames", {}) else "split"
        return "" if "$ref" in of else f"{{{name}: {values(of)}}}"
    if schema["type"] == "array":
        return f"list of {'metrics' if 'enum' in schema['items'] else values(schema['items'])}"
    text = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true, false"}[schema["type"]]
    signs = {"exclusiveMinimum": ">", "minimum": ">=", "ge": ">=", "exclusiveMaximum": "<", "maximum": "<="}
    bounds = {sign: schema[key] for key, sign in signs.items() if schema.get(key, 2**31) < 2**31}  # TFX's 32 bits
    return " ".join([text, *(f"{sign} {bound:g}" for sign, bound in bounds.items())])


def test_the_keys_of_the_records() -> None:
    rows = tables()["key", "type", "values", "meaning"]
    assert [row[0] for row in rows] == [value for name, value in vars(features).items() if name.isupper()]
    schema = (ROOT / "schemas/records.pbtxt").read_text(encoding="utf-8")
    types = dict(re.findall(r'name: "([^"]+)"\s+type: (\w+)', schema))
    assert {row[0]: row[1] for row in rows} == {key: TYPES[kind] for key, kind in types.items()}


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md", "docs/data.md", "docs/evaluation.md", "docs/tfma.md"])
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    headings = {
        re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")
        for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("#"):
            assert target[1:] in headings
        elif "://" not in target:
            assert ((ROOT / page).parent / target.partition("#")[0]).exists(), target
