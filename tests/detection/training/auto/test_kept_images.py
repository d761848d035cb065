"""Which training images are kept to choose the checkpoint."""

import logging
from pathlib import Path

import pytest

from detection.datasets.groups import group_of
from detection.datasets.sampling import hash_fraction, key_hash
from detection.input_pipeline.evaluation_records import parse_record
from detection.input_pipeline.record_reader import RecordReader
from detection.training.auto.kept_images import divide, training_records
from schemas.config.config_io import load_config, parse_config
from schemas.errors import ConfigError, DataError
from tests.detection.synthetic import write_shards
from tests.detection.training.evaluation_records import coco_records

IMAGES = 100


@pytest.fixture(scope="module")
def records() -> list[bytes]:
    return coco_records(IMAGES, side=16)[0]


@pytest.fixture(scope="module")
def shards(records: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_shards(tmp_path_factory.mktemp("records"), records)


def _ids(reader: RecordReader | None) -> list[int]:
    assert reader is not None
    return [parse_record(reader.read(number)).image.image_id for number in range(len(reader))]


def test_a_part_is_kept_and_every_image_is_used_once(shards: list[str]) -> None:
    reader = RecordReader(shards)
    training, validation, _ = divide(reader, 0.2)
    assert sorted(_ids(training) + _ids(validation)) == sorted(_ids(reader))
    assert 0.1 * IMAGES < len(_ids(validation)) < 0.3 * IMAGES
    assert [image for image in _ids(reader) if image in set(_ids(training))] == _ids(training), "in their order"
    for part in (training, validation):
        assert part is not None
        for number, image_id in enumerate(_ids(part)):
            assert (
                parse_record(reader.read(_ids(reader).index(image_id))).entry == parse_record(part.read(number)).entry
            )


def test_an_image_stays_in_its_part_when_others_are_added(
    records: list[bytes], shards: list[str], tmp_path: Path
) -> None:
    _, validation, _ = divide(RecordReader(shards), 0.2)
    half = RecordReader(write_shards(tmp_path, records[::-2]))
    assert sorted(_ids(divide(half, 0.2).validation)) == sorted(set(_ids(validation)) & set(_ids(half)))


def test_an_image_of_several_spans_is_validated_on_once_and_never_trained_on(shards: list[str]) -> None:
    training, validation, _ = divide(RecordReader([*shards, *shards]), 0.2)
    assert _ids(validation) == _ids(divide(RecordReader(shards), 0.2).validation)
    assert not set(_ids(validation)) & set(_ids(training))


def test_a_part_is_kept_of_what_a_hash_left_for_training(records: list[bytes], tmp_path: Path) -> None:
    """A data set of one file: the same images may not be `eval` and the kept part."""
    rest = [record for record in records if hash_fraction(key_hash(group_of(parse_record(record)[1]))) >= 0.2]
    assert len(rest) < len(records)
    assert len(_ids(divide(RecordReader(write_shards(tmp_path, rest)), 0.2).validation)) > 0.1 * len(rest)


@pytest.mark.parametrize(
    ("section", "keeps"),
    [
        ("{every: auto, fraction: 0.2}", False),
        ("{every: auto, fraction: 0.9}", True),
        ("{every: 9, fraction: 0.2}", True),
        ("{every: auto, fraction: 0.2, export: best}", True),
        ("{every: auto, fraction: 0.2, patience: 2}", True),
    ],
)
def test_a_few_kept_images_choose_no_checkpoint(
    shards: list[str], section: str, keeps: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Where they would, all images are trained on, and those that evaluate the model show how the training goes."""
    given, asked = load_config(None, [f"train.validation={section}"]), []

    def curve_shards() -> list[str]:
        asked.append("once")
        return shards[:1]

    with caplog.at_level(logging.INFO):
        config, records = training_records(given, shards=shards, validation_shards=[], curve_shards=curve_shards)
    assert len(asked) == (not keeps), "a copy of a remote split is only made where it is needed"
    validation = config.train.validation
    assert validation.exports_best == keeps == (len(records.training) < IMAGES)
    if keeps:
        assert config == given
        return
    assert (validation.split, validation.every, validation.max_images) == ("eval", "auto", 100)
    assert records.validation is not None
    assert _ids(records.validation) == _ids(RecordReader(shards[:1]))
    assert "too few to choose a checkpoint: training on all of them" in caplog.text
    assert "AP on eval shows whether it still rises, and chooses nothing" in caplog.text
    parse_config(config.model_dump(mode="json"))
    with caplog.at_level(logging.INFO):
        config, records = training_records(given, shards=shards, validation_shards=[])
    assert (config.train.validation.enabled, len(records.training)) == (False, IMAGES)
    assert "To see whether AP still rises, set train.validation.split=eval" in caplog.text


@pytest.mark.parametrize(("every", "parts", "best"), [("auto", 1, False), ("auto", 2, True), ("9", 1, True)])
def test_few_images_of_another_split_choose_no_checkpoint(
    records: list[bytes], tmp_path: Path, every: str, parts: int, best: bool
) -> None:
    others = write_shards(tmp_path, records[: 40 * parts])
    config = load_config(None, [f"train.validation.every={every}", "evaluate.split=test"])
    config, opened = training_records(config, shards=others, validation_shards=others)
    assert opened.validation is not None
    assert (len(opened.validation), config.train.validation.exports_best) == (40 * parts, best)


def test_validation_decides_what_is_kept(shards: list[str], caplog: pytest.LogCaptureFixture) -> None:
    def parts(*assignments: str, validation_shards: list[str] | None = None) -> list[int]:
        config = load_config(None, list(assignments))
        config, opened = training_records(config, shards=shards, validation_shards=validation_shards or [])
        assert config.train.validation.enabled == (opened.validation is not None)
        return [len(one) for one in opened[:2] if one is not None]

    assert parts() == [IMAGES]
    kept = len(_ids(divide(RecordReader(shards), 0.2).validation))
    assert parts("train.validation={every: 3, fraction: 0.2}") == [IMAGES - kept, kept]
    assert parts("train.validation={every: 9, fraction: 0.6}")[1] > 2 * kept
    for assignments in (["train.validation={every: 9, split: eval}"], ["train.validation.every=9", "evaluate.split=x"]):
        assert parts(*assignments, validation_shards=shards[:1]) == [IMAGES, len(RecordReader(shards[:1]))]
        with pytest.raises(ConfigError, match="the split 'eval' has no records"):
            parts(*assignments)


def test_too_few_images_choose_nothing_unless_asked_for(
    records: list[bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shards = write_shards(tmp_path, records[:30])
    reader = RecordReader(shards)
    kept = len(divide(reader, 0.2).validation or ())
    assert 0 < kept < 10

    def opened(every: str) -> tuple[bool, int]:
        config = load_config(None, [f"train.validation={{every: {every}, fraction: 0.2, metric: AR10}}"])
        with caplog.at_level(logging.INFO):
            config, parts = training_records(config, shards=shards, validation_shards=[])
        return config.train.validation.enabled, len(parts.training)

    assert opened("auto") == (False, 30)
    assert f"{kept} of 30 training images are too few to choose a checkpoint" in caplog.text
    assert opened("5") == (True, 30 - kept)
    for fraction, message in ((1e-9, "no image of 30 is kept"), (1 - 1e-9, "all 30 training images would be kept")):
        config = load_config(None, ["train.validation.every=5", f"train.validation.fraction={fraction:.12f}"])
        with pytest.raises(DataError, match=message):
            training_records(config, shards=shards, validation_shards=[])


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("{every: 1, split: train}", "training images cannot select a checkpoint"),
        ("{every: 1, split: eval, fraction: 0.2}", "fraction = 0.2 does nothing beside split = eval"),
        ("{split: eval}", "split = eval does nothing without evaluations during training"),
    ],
)
def test_keys_that_cannot_act_are_refused(section: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(None, [f"train.validation={section}"])
