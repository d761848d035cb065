from pathlib import Path

import pytest

from components.coco_example_gen import examination, shards
from components.coco_example_gen.conversion import convert
from detection.datasets.layouts import find_splits
from schemas.config.config import DataConfig
from tests.components.coco_example_gen.data_set import write_data_set


@pytest.mark.parametrize(
    ("cores", "images", "processes"), [(1, 10**9, 0), (2, 29_999, 0), (2, 30_000, 2), (16, 2_000, 16)]
)
def test_processes_are_for_much_work_and_more_than_one_core(
    monkeypatch: pytest.MonkeyPatch, cores: int, images: int, processes: int
) -> None:
    monkeypatch.setattr(examination.os, "cpu_count", lambda: cores)
    expected = ["--direct_running_mode=multi_processing", f"--direct_num_workers={processes}"] if processes else []
    assert examination.local_options(images) == expected


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
        convert(find_splits(tmp_path / "data"), out, DataConfig())
        contents.append({path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()})
    assert contents[0] == contents[1]
