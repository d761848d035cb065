"""The tables of the docs say what the code says."""

import argparse
import re
from collections.abc import Iterator, Mapping
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
import yaml

from detection.models.heads.postprocess import BoxPostprocess
from detection.models.registry import FAMILIES
from docs.tables import configuration_page
from docs.tables import rows as option_rows
from pipelines.commands import export
from schemas import features, serving
from schemas.config.config import Config
from schemas.config.config_io import from_yaml, load_config
from schemas.config.issues import ISSUE_KINDS
from schemas.config.runtime_parameters import RUNTIME_PARAMETERS

ROOT = Path(__file__).parents[1]
# Page -> tables that it has at least.
PAGES = {
    "docs/data.md": 5,
    "docs/evaluation.md": 1,
    "docs/tfma.md": 2,
    "docs/configuration.md": 6,
    "docs/initialization.md": 2,
    "docs/importing.md": 3,
    "docs/distributed.md": 2,
    "docs/update_rules.md": 2,
    "docs/losses.md": 5,
    "docs/training_input.md": 3,
    "docs/from_od_api.md": 8,
    "docs/from_automl.md": 1,
    "docs/from_tpu_mask_rcnn.md": 1,
    "docs/efficientdet.md": 3,
    "docs/mask_rcnn.md": 6,
    "docs/storage.md": 2,
    "docs/runners.md": 3,
    "docs/operations.md": 3,
    "docs/submission.md": 1,
    "docs/scaling.md": 2,
    "docs/export.md": 5,
    "docs/postprocessing.md": 2,
    "docs/serving.md": 2,
    "docs/weights.md": 2,
    "docs/detectors.md": 2,
}
TYPES = {"BYTES": "bytes", "INT": "int64", "FLOAT": "float"}  # TFX's name -> ours


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def all_tables(name: str) -> list[tuple[tuple[str, ...], list[list[str]]]]:
    """Header and rows of every table of a page; cells without the marks of code."""
    tables: list[tuple[tuple[str, ...], list[list[str]]]] = []
    inside = False
    for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            inside = False
        elif not inside:
            inside = True
            tables.append((tuple(cells(line)), []))
        elif not set(line) <= set("|-"):
            tables[-1][1].append(cells(line))
    return tables


def tables(name: str = "docs/data.md") -> dict[tuple[str, ...], list[list[str]]]:
    """Header -> rows, of every table of a page whose tables all differ in their headers."""
    return dict(all_tables(name))


def cells(line: str) -> list[str]:
    return [cell.strip().replace("`", "") for cell in line.strip().strip("|").split("|")]


@pytest.mark.parametrize(("name", "least"), PAGES.items())
def test_every_row_has_the_cells_of_its_header(name: str, least: int) -> None:
    assert len(all_tables(name)) >= least
    for header, rows in all_tables(name):
        assert rows
        assert {len(row) for row in rows} == {len(header)}, header


def test_the_kinds_of_issues() -> None:
    assert tables()["kind", "meaning", "default", "policies"] == [
        [kind, field.description, field.default, ", ".join(field.allowed)] for kind, field in ISSUE_KINDS.items()
    ]


def test_the_configuration_page_is_that_of_the_classes() -> None:
    text = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    assert text == configuration_page(), "run `make docs`"


def test_every_key_of_the_configuration_has_a_row() -> None:
    tree = Config().model_dump()
    assert all(cell for _, table in all_tables("docs/configuration.md") for row in table for cell in row)
    listed = [row[0].split(".") for _, table in all_tables("docs/configuration.md") for row in table]
    for path in listed:
        if "<name>" not in path:
            reduce(getitem, path, tree)
    leaves = {tuple(path[: path.index("<name>")]) if "<name>" in path else tuple(path) for path in listed}
    assert {leaf for leaf in paths(tree) if not any(leaf[: len(known)] == known for known in leaves)} == set()


def test_every_field_of_a_detector_that_a_page_names_exists() -> None:
    configs = {type(config): config for family in FAMILIES for config in family.presets.values()}
    keys = [row.key.strip("`") for kind, one in configs.items() for row in option_rows(kind, "model.overrides.", one)]
    parts = [key.split(".") for key in keys]
    known = {".".join(path[:length]) for path in parts for length in range(1, len(path) + 1)}
    pages = [ROOT / "README.md", ROOT / "benchmarks/README.md", *(ROOT / "docs").glob("*.md")]
    named = {
        key: page.name
        for page in pages
        for key in re.findall(r"model\.overrides(?:\.[a-z_0-9]+)+", page.read_text(encoding="utf-8"))
    }
    assert len(named) > 50
    assert {key: page for key, page in named.items() if key not in known} == {}


def paths(tree: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from paths(value, (*above, key))
        else:
            yield (*above, key)


def default_assignments() -> list[str]:
    rows = [row for _, table in all_tables("docs/configuration.md") for row in table]
    return [f"{key}={default}" for key, _, default, _ in rows if default != "none" and "<name>" not in key]


@pytest.mark.parametrize("assignment", default_assignments())
def test_each_default_can_be_set_as_it_stands_in_the_table(assignment: str) -> None:
    assert load_config(None, [assignment]) == Config()


def test_the_parameters_of_a_compiled_pipeline() -> None:
    rows = tables("docs/runners.md")["parameter", "key", "value"]
    assert [row[:2] for row in rows] == [[name, one.key] for name, one in RUNTIME_PARAMETERS.items()]
    assert [row[2].startswith("integer") for row in rows] == [one.kind is int for one in RUNTIME_PARAMETERS.values()]


def test_the_options_of_postprocessing() -> None:
    rows = tables("docs/postprocessing.md")["key", "default", "meaning"]
    assert [row[0] for row in rows] == list(BoxPostprocess.model_fields)
    assert BoxPostprocess.model_validate({row[0]: yaml.safe_load(row[1]) for row in rows}) == BoxPostprocess()


def _blocks(name: str) -> list[str]:
    return re.findall(r"```yaml\n(.*?)```", _text(name), re.DOTALL)


@pytest.mark.parametrize("block", [block for name in PAGES for block in _blocks(name)])
def test_each_block_of_yaml_is_a_configuration_alone(block: str) -> None:
    assert from_yaml(block) != Config()


def test_the_flags_and_outputs_of_an_export() -> None:
    page = dict(all_tables("docs/export.md")[:1])
    listed = {flag for row in page["flag", "values", "default"] for flag in row[0].split(", ")}
    parser = argparse.ArgumentParser(add_help=False)
    export.add_arguments(parser)
    known = {flag for action in parser._actions for flag in action.option_strings}
    assert {flag.split()[0] for flag in listed} == known - {"--model", "--output", "--verbose"}
    outputs = [row[0] for header, rows in all_tables("docs/export.md") for row in rows if header == ("name", "value")]
    assert outputs == [
        serving.BOXES,
        serving.SCORES,
        serving.CLASSES,
        serving.COUNT,
        serving.VALID,
        serving.RAW_BOXES,
        serving.RAW_SCORES,
    ]
    signatures = [row[0] for header, rows in all_tables("docs/export.md") for row in rows if header[0] == "signature"]
    assert signatures == [serving.ENCODED_SIGNATURE, serving.PIXEL_SIGNATURE, serving.EXAMPLE_SIGNATURE]


def test_the_keys_of_the_records() -> None:
    rows = tables()["key", "type", "values", "meaning"]
    assert [row[0] for row in rows] == [value for name, value in vars(features).items() if name.isupper()]
    schema = (ROOT / "schemas/records.pbtxt").read_text(encoding="utf-8")
    types = dict(re.findall(r'name: "([^"]+)"\s+type: (\w+)', schema))
    assert {row[0]: row[1] for row in rows} == {key: TYPES[kind] for key, kind in types.items()}
