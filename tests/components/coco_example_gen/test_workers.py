from pathlib import Path

import pytest

from components.coco_example_gen import shards, workers
from components.coco_example_gen.conversion import convert
from detection.datasets.layouts import find_splits
from schemas.config.issues import MAX_PIXELS, IssuePolicies
from tests.components.coco_example_gen.data_set import write_data_set


@pytest.mark.parametrize(
    ("cores", "images", "processes"), [(1, 10**9, 0), (2, 29_999, 0), (2, 30_000, 2), (16, 2_000, 16)]
)
def test_processes_are_for_much_work_and_more_than_one_core(
    monkeypatch: pytest.MonkeyPatch, cores: int, images: int, processes: int
) -> None:
    monkeypatch.setattr(workers.os, "cpu_count", lambda: cores)
    expected = ["--direct_running_mode=multi_processing", f"--direct_num_workers={processes}"] if processes else []
    assert workers.local_options(images) == expected


@pytest.mark.parametrize(
    ("arguments", "chosen"),
    [([], False), (["--temp_location=x"], False), (["--runner=Flink"], True), (["--direct_num_workers=3"], True)],
)
def test_a_choice_of_the_user_counts(arguments: list[str], chosen: bool) -> None:
    assert workers.chooses_workers(arguments) is chosen


@pytest.mark.extended
def test_processes_write_the_same_bytes_as_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data_set(tmp_path / "data", images=10)
    monkeypatch.setattr(shards, "IMAGES_PER_SHARD", 3)
    contents = []
    for name, options in (
        ("threads", []),
        ("processes", ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]),
    ):
        monkeypatch.setattr("components.coco_example_gen.examination.local_options", lambda images, o=options: o)
        out = tmp_path / name
        out.mkdir()
        convert(find_splits(tmp_path / "data"), out, policies=IssuePolicies(), max_pixels=MAX_PIXELS)
        contents.append({path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()})
    assert contents[0] == contents[1]
