import sys
import tempfile
from pathlib import Path

import pytest

from components.coco_example_gen import examination, shards
from components.coco_example_gen.conversion import convert
from detection.datasets.layouts import find_splits
from schemas.config.config import DataConfig
from tests.components.coco_example_gen.data_set import write_data_set
from tests.components.coco_example_gen.remote_data import converted, upload
from tests.storage_emulator.fixture import Bucket


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


WORKER = """#!/bin/sh
# A machine of its own: other folders, no way to those of the driver.
mkdir -p "{own}/$$/tmp" && cd "{own}/$$"
export TMPDIR="{own}/$$/tmp" PYTHONPATH="{hook}:{repository}"
unset COCOFLOW_CACHE
exec "{python}" "$@"
"""
HOOK = """
import os, sys

def refuse(event, arguments):
    if event in ("open", "os.listdir", "os.mkdir", "os.rename") and str(arguments[0]).startswith({driver!r}):
        os.write(2, b"another machine's folder: " + os.fsencode(str(arguments[0])))
        os._exit(1)

sys.addaudithook(refuse)
"""


@pytest.mark.extended
@pytest.mark.parametrize("records", [False, True], ids=["coco", "records"])
def test_workers_have_only_the_bucket_in_common(
    records: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gcs: Bucket
) -> None:
    """Processes with working folders and temporary files of their own, as on other machines."""
    driver, workers_own, hook = (tmp_path / name for name in ("driver", "workers", "hook"))
    for folder in (driver, workers_own, hook):
        folder.mkdir()
    write_data_set(tmp_path / "data", images=10, broken=True)
    monkeypatch.setattr(shards, "IMAGES_PER_SHARD", 3)
    expected = converted(find_splits(tmp_path / "data"), tmp_path / "out")
    data = upload(tmp_path / "data", f"{gcs.path}/data")
    if records:
        data = upload(tmp_path / "out", f"{gcs.path}/records")
        expected = converted(find_splits(tmp_path / "out"), tmp_path / "again")

    (hook / "sitecustomize.py").write_text(HOOK.format(driver=str(driver)))
    worker = tmp_path / "worker.sh"
    worker.write_text(
        WORKER.format(own=workers_own, hook=hook, repository=Path(__file__).parents[3], python=sys.executable)
    )
    worker.chmod(0o700)
    monkeypatch.chdir(driver)
    monkeypatch.setenv("TMPDIR", str(driver))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("COCOFLOW_CACHE", str(driver / "cache"))
    monkeypatch.setattr(sys, "executable", str(worker))  # that Beam starts its workers with
    options = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]
    written = converted(find_splits(data), f"{gcs.path}/out", beam_args=options)
    assert written == expected
    assert len(list(workers_own.iterdir())) >= 2
