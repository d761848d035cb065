"""`check-data` and `run` agree on whether a data set can be trained on: on generated layouts."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from components.coco_example_gen import examination
from components.coco_example_gen.check_data import check_data, print_examination
from components.coco_example_gen.conversion import convert
from components.coco_example_gen.spans.dataset_files import files_of
from detection.datasets.examples import read_dataset
from detection.datasets.importers.label_map import read_dataset_file
from detection.training.auto.data_facts import require_trainable
from pipelines.runs.comparison import find_data
from schemas.artifacts import DATASET_JSON
from schemas.config.config import Config
from schemas.config.config_io import load_config
from schemas.errors import CocoflowError
from tests.components.coco_example_gen import layouts
from tests.components.coco_example_gen.layouts import write_layout
from tests.components.coco_example_gen.without_beam import read_without_beam

_OF_SHAPES = {4: "mask-rcnn-nano", 7: "centernet-nano-kpts"}  # last digit of the seed -> detector that learns more


@pytest.fixture(autouse=True)
def _without_beam(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(examination, "_read", read_without_beam)
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def _checked(config: Config) -> bool:
    try:
        files_of(config.data)
        return print_examination(check_data(config, None), config) in (0, 3)
    except CocoflowError:
        return False


def _run(config: Config, output: Path) -> bool:
    """What a run does with the data until the first step."""
    try:
        convert(find_data(config).files, output, config.data)
        dataset = read_dataset_file(output / DATASET_JSON)
        judged = config.evaluate.split
        require_trainable([dataset], config, judged=judged if judged in dataset["splits"] else "")
        read_dataset(output, judged)
    except CocoflowError:
        return False
    return True


def _require_one_answer(seeds: range, tmp_path: Path) -> None:
    answers = set()
    for seed in seeds:
        words = write_layout(tmp_path / str(seed), seed)
        model = _OF_SHAPES.get(seed % 10, "efficientdet-nano")
        config = load_config(None, [f"data.root={json.dumps(str(tmp_path / str(seed)))}", f"model.name={model}"])
        checked = _checked(config)
        assert _run(config, tmp_path / f"examples{seed}") == checked, f"layout {seed}: {words}"
        answers.add(checked)
    assert answers == {True, False}


def test_check_data_and_run_agree(tmp_path: Path) -> None:
    _require_one_answer(range(40), tmp_path)


@pytest.mark.extended
def test_check_data_and_run_agree_on_two_hundred_layouts(tmp_path: Path) -> None:
    _require_one_answer(range(40, 240), tmp_path)


@pytest.mark.parametrize("seed", range(5))
def test_the_fraction_that_is_advised_for_few_images_works(tmp_path: Path, seed: int) -> None:
    tree = layouts.tree_of(seed)
    layouts.write_images(tmp_path / "data/train", tree, seed)
    (tmp_path / "data/train/labels.json").write_text(json.dumps(tree))
    root = f"data.root={json.dumps(str(tmp_path / 'data'))}"
    with pytest.raises(CocoflowError, match=r"eval\. Set data\.eval_fraction=0\.\d+, which") as caught:
        check_data(load_config(None, [root, "data.eval_fraction=1e-9"]), None)
    advised = str(caught.value).partition("Set ")[2].partition(",")[0]
    found = check_data(load_config(None, [root, advised]), None)
    assert {name: result.images > 0 for name, result in found.results.items()} == {"eval": True, "train": True}
