import contextlib
import itertools
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.config.config import Config
from schemas.config.config_io import from_yaml, load_config, to_yaml
from schemas.errors import ConfigError


def test_defaults_survive_a_round_trip() -> None:
    assert from_yaml(to_yaml(Config())) == Config()


@given(
    steps=st.integers(1, 10**9),
    rate=st.floats(1e-8, 10.0),
    freeze=st.lists(st.from_regex(r"[abc/.]+\*?", fullmatch=True)),
)
def test_values_survive_a_round_trip(steps: int, rate: float, freeze: list[str]) -> None:
    config = Config.model_validate({"train": {"steps": steps, "schedule": {"learning_rate": rate}, "freeze": freeze}})
    assert from_yaml(to_yaml(config)) == config


def test_assignments_override_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("train: {steps: 5, batch_size: 2}\n")
    config = load_config(
        path, ["train.batch_size=4", "data.splits.train.annotations=a.json", "data.splits.train.images=i"]
    )
    assert (config.train.steps, config.train.batch_size) == (5, 4)
    assert config.data.splits["train"].annotations == "a.json"


@pytest.mark.parametrize(
    ("assignment", "parts"),
    [
        ("train.batchsize=4", ["unknown key train.batchsize", "train.batch_size"]),
        ("train.shedule.learning_rate=1", ["unknown key train.shedule", "train.schedule"]),
        ("trian.steps=1", ["unknown key trian", "train"]),
        ("train.steps=many", ["train.steps", "'many'", "integer"]),
        ("train.steps=0", ["train.steps", "greater than 0"]),
        (
            "train={steps: 1000, schedule: {warmup_steps: 1000}}",
            ["train: schedule.warmup_steps = 1000", "steps = 1000"],
        ),
        ("train.augment.scale_min=3", ["train.augment: scale_min = 3.0 is above scale_max = auto"]),
        ("train={jit_compile: true, deterministic: true}", ["train: jit_compile and deterministic are exclusive"]),
        ("train.precision=float8", ["train.precision", "'float8'", "mixed_bfloat16"]),
        ("evaluate.thresholds.absolute.mAP=0.5", ["evaluate.thresholds.absolute.mAP", "AP50"]),
        (
            "evaluate.analysis={visualizations: 0, max_boxes: 5}",
            ["evaluate.analysis: max_boxes = 5 does nothing while visualizations = 0"],
        ),
        (
            "evaluate={thresholds: {significant: [AP]}, analysis: {replicates: 0}}",
            ["evaluate: thresholds.significant requires intervals; set analysis.replicates"],
        ),
        (
            "evaluate={thresholds: {not_worse: [AP]}, analysis: {replicates: 0}}",
            ["evaluate: thresholds.not_worse requires intervals; set analysis.replicates"],
        ),
        ("evaluate.thresholds.not_worse=[mAP]", ["evaluate.thresholds.not_worse.0: 'mAP' is not", "AP50"]),
        ("evaluate={iou_types: [bbox, bbox]}", ["evaluate.iou_types: list each IoU type once, such as [bbox, segm]"]),
        (
            "evaluate={iou_types: [bbox], thresholds: {absolute: {segm/AP: 0.1}}}",
            ["evaluate: thresholds: segm/AP is not evaluated; add segm to evaluate.iou_types"],
        ),
        (
            "evaluate.thresholds.absolute={segm/pascal_voc_AP50: 0.1}",
            ["evaluate: thresholds: segm/pascal_voc_AP50 is not evaluated; add pascal_voc_AP50 to evaluate.metrics"],
        ),
        (
            "train.validation={every: 5, metric: open_images_AP50}",
            ["train.validation.metric: open_images_AP50 is not evaluated; add open_images_AP50 to evaluate.metrics"],
        ),
        (
            "evaluate.oks_sigmas=[0.1, 0.2]",
            ["evaluate: oks_sigmas = (0.1, 0.2) does nothing unless iou_types has keyp"],
        ),
        ("evaluate.metrics=[pascal_voc]", ["evaluate.metrics.0: 'pascal_voc' is no metric", "pascal_voc_AP50"]),
        ("data.splits.train.annotations=a.json", ["data.splits.train", "set annotations and images, or records"]),
        ("data.splits.train={records: a, images: b}", ["data.splits.train", "remove annotations and images"]),
        ("data.split_ratios={train: 0.8, eval: 0.1}", ["data.split_ratios", "the sum of the fractions is 0.9, not 1"]),
        *((f"data.span={span}", ["data.span = "]) for span in ("-1", "yesterday", "1969-12-31", "2147483648")),
        ("data.on_fault=skip", ["data.on_fault"]),
        ("data.on_fault.image_broken=keep", ["data.on_fault: image_broken = keep", "repair, fail, drop"]),
        ("train.steps", ["expected key=value"]),
        ("=3", ["expected key=value"]),
    ],
)
def test_an_invalid_assignment_is_explained(assignment: str, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, [assignment])
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("text", "part"), [("- 1\n", "mapping of sections"), ("train: [", "not a YAML file"), ("train: 3", "train = 3")]
)
def test_an_invalid_file_is_named(tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"wrong\.yaml") as caught:
        load_config(path)
    assert part in str(caught.value)


def test_the_flag_is_blamed_for_its_own_mistake_and_the_file_for_its(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("train: {steps: 5}\nmodel: {weights: coco}")
    for assignment in ("train.steps=-1", "train.stepz=1", "train.init.checkpoint=x", "run.name=.nan"):
        with pytest.raises(ConfigError) as caught:
            load_config(path, [assignment])
        assert str(caught.value).startswith("--set: ")
        assert "mine.yaml" not in str(caught.value)
    path.write_text("train: {steps: -1}")
    with pytest.raises(ConfigError, match=r"^.*mine\.yaml: train\.steps = -1"):
        load_config(path, ["model.name=x"])
    assert load_config(path, ["train.steps=1"]).train.steps == 1, "an assignment mends the file"


def test_a_value_in_place_of_a_section_is_explained_without_python() -> None:
    for assignment, told in (
        ("train=5", "train is a section. Set one of its keys, such as train.steps."),
        ("train.optimizer=sgd", "train.optimizer is a section. Set one of its keys, such as train.optimizer.name."),
        ("data.splits.train=3", "data.splits.train is a section. Set one of its keys."),
    ):
        with pytest.raises(ConfigError) as caught:
            load_config(None, [assignment])
        assert str(caught.value).endswith(told)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere.yaml.*--config"):
        load_config(tmp_path / "nowhere.yaml")


def test_a_section_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Config().train.steps = 3


def test_warmup_is_a_tenth_unless_said() -> None:
    assert load_config(None, ["train.steps=70"]).train.warmup_steps == 7
    assert load_config(None, ["train.schedule.warmup_steps=0"]).train.warmup_steps == 0
    assert load_config(None, ["train.steps=3"]).train.warmup_steps == 0


@pytest.mark.parametrize("text", ["2026-11-21", "2024-02-29", "1970-01-01"])
def test_a_span_is_a_day_or_its_number(text: str) -> None:
    number = (date.fromisoformat(text) - date(1970, 1, 1)).days
    assert load_config(None, [f"data.span={text}"]).data.span == number
    assert load_config(None, [f"data.span={number}"]).data.span == number


def test_a_date_may_be_a_name() -> None:
    config = load_config(None, ["run.name=2026-11-21"])
    assert config.run.name == "2026-11-21"
    assert from_yaml(to_yaml(config)) == config


_BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{inner}'] * 10)}]\n" for inner, name in itertools.pairwise("abcdefghij")
)
_HOSTILE = {
    "data: {span: 2026-02-30}": "data.span: 2026-02-30 is not a day of the calendar, day is out of range for month",
    "data: {span: 2026-13-01}": "data.span: 2026-13-01 is not a day of the calendar",
    "data: {span: 1969-12-31}": "data.span",
    f"train: {{steps: {'9' * 5001}}}": "999... cannot be read as !!int",
    f"train: {{steps: {'9' * 4000}}}": "train.steps: an integer of 13288 bits. Write one of at most 64",
    f"train: {{seed: {2**63}}}": "train.seed: an integer of 64 bits",
    f"train: {{steps: 0x{'f' * 9999}}}": "train.steps: an integer of 39996 bits",
    "train: {schedule: {learning_rate: .nan}}": "train.schedule.learning_rate: nan is not finite",
    "train: {schedule: {learning_rate: .inf}}": "train.schedule.learning_rate: inf is not finite",
    "train: {schedule: {learning_rate: 1e400}}": "train.schedule.learning_rate = '1e400'",
    "model: {overrides: {deep: [1, -.inf]}}": "model.overrides.deep[1]: -inf is not finite",
    f"model: {'[' * 5000}": "nested more than 32 levels deep",
    f"model: {'[' * 5000}{']' * 5000}": "nested more than 32 levels deep",
    f"model: {'{a: ' * 5000}1{'}' * 5000}": "nested more than 32 levels deep",
    "model: {overrides: {a: &x [*x]}}": "*x contains itself",
    f"model: [{'1, ' * 20_000}]": "more than 10000 values",
    'run: {root: "a\\0b"}': "run.root: 'a\\x00b' has a NUL character",
    "train: {steps: !!int many}": "'many' cannot be read as !!int",
    "train: {steps: !!bool many}": "'many' cannot be read as !!bool",
    "train: {steps: !!timestamp many}": "'many' cannot be read as !!timestamp",
    "train: {steps: !!int ''}": "'' cannot be read as !!int",
    "train: {? [1] : 2}": "found unhashable key",
    f"run: {{name: {'x' * 2_000_000}}}": "more than 1048576 characters",
}


@pytest.mark.parametrize(("text", "part"), [*_HOSTILE.items(), (_BOMB, "more than 10000 values")], ids=str.__len__)
def test_hostile_text_is_refused_in_a_few_words(tmp_path: Path, text: str, part: str) -> None:
    """In a file and in --set alike: never a traceback, and the message stays short."""
    path = tmp_path / "c.yaml"
    path.write_text(text)
    key, _, value = text.partition(": ")
    for file, assignments in ((path, []), (None, [f"{key}={value}"])):
        if text == _BOMB and file is None:
            continue
        with pytest.raises(ConfigError) as caught:
            load_config(file, assignments)
        assert part in str(caught.value)
        assert len(str(caught.value)) < 500


def test_an_assignment_makes_no_deep_tree() -> None:
    for key in ("a." * 5000 + "b", "model.overrides." + "a." * 40 + "b"):
        with pytest.raises(ConfigError, match="nested more than 32 levels deep"):
            load_config(None, [f"{key}=1"])


def test_a_name_that_the_terminal_did_not_give_as_utf8_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.root: 'caf\\udce9' is not UTF-8"):
        load_config(None, ["data.root=caf\udce9"])


def test_half_a_surrogate_pair_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text('run: {root: "\\ud800"}')
    with pytest.raises(ConfigError, match=r"not a YAML file: .* invalid Unicode character escape code .* line 1"):
        load_config(path)
    with pytest.raises(ConfigError, match="run is a section"):
        load_config(None, ['run={root: "\\ud800"}'])


def test_no_more_of_a_device_is_read_than_is_parsed() -> None:
    with pytest.raises(ConfigError, match="/dev/zero: more than 1048576 characters"):
        load_config("/dev/zero")


@pytest.mark.parametrize("text", ["train: &t {steps: 5}\nrun: {name: x}", "run: {name: &n x, root: *n}"])
def test_aliases_may_be_used(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    assert load_config(path).run.name == "x"


@settings(max_examples=30)
@given(st.text())
def test_whatever_is_assigned_is_read_or_refused(text: str) -> None:
    for key in ("run.name", "train.steps", "data.span", "model.overrides"):
        with contextlib.suppress(ConfigError):
            config = load_config(None, [f"{key}={text}"])
            assert from_yaml(to_yaml(config)) == config


def test_an_assignment_in_epochs_replaces_steps_of_the_file_and_the_other_way_round(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("train: {steps: 2000, schedule: {warmup_epochs: 0.5}}")
    train = load_config(path, ["train.epochs=3", "train.schedule.warmup_steps=7"]).train
    assert (train.steps, train.epochs) == ("auto", 3)
    assert (train.schedule.warmup_steps, train.schedule.warmup_epochs) == (7, None)
    train = load_config(path, ["train.budget=30"]).train
    assert (train.steps, train.epochs, train.budget) == ("auto", None, 30)
    with pytest.raises(ConfigError, match="steps = 20 does nothing beside epochs"):
        load_config(path, ["train.epochs=3", "train.steps=20"])


@pytest.mark.parametrize(
    "text", ["train: {steps: 1}\nmodel: {name: ssd-nano}\ntrain: {steps: 2}\n", "train:\n  steps: 1\n  steps: 2\n"]
)
def test_a_key_that_stands_twice_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"stands here a second time, after line \d"):
        from_yaml(text)
