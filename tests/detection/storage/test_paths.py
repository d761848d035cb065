from pathlib import Path

import pytest

from detection.storage import paths
from schemas.errors import ConfigError


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("s3://bucket/data", r"--data s3://bucket/data: s3:// is not supported\. Use a local path"),
        ("hdfs://host:9000/data", "hdfs:// is not supported"),
        ("https://host/data.json", "https:// is not supported"),
        ("abfss://c@account/data", "abfss:// is not supported"),
        ("GS://bucket/data", "GS:// is not supported"),
        ("file:///data", "write a local path without file://: /data"),
        ("~/data", r"only the shell knows ~\. Write /.*/data"),
        ("~", r"only the shell knows ~\. Write /"),
        ("gs:/bucket/data", "one slash is missing. Write gs://bucket/data"),
        ("gs://", "'' is not the name of a bucket"),
        ("gs://Bucket/data", "'Bucket' is not the name of a bucket"),
        ("gs://bucket//data", "takes '//', '.' and '..' for names"),
        ("gs://bucket/data/../other", "takes '//', '.' and '..' for names"),
        ("gs://bucket/a\nb", "control characters"),
    ],
)
def test_a_path_that_is_not_supported_is_refused_by_name(path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        paths.require_supported(path, "--data")


@pytest.mark.parametrize(
    "path",
    [
        *("data", "/data//x/../y", r"C:\data", "C:/data", "a:b", "gs"),
        *("gs://bucket", "gs://bucket/", "gs://my.bucket_1/a b/c.json", "gs://bucket/runs[1]/*.tfrecord"),
    ],
)
def test_local_and_remote_paths_are_supported(path: str) -> None:
    paths.require_supported(path, "--data")
    assert paths.is_remote(path) == path.startswith("gs://")
    paths.require_supported(Path(path) if not path.startswith("gs://") else path, "--data")


def test_a_remote_path_that_went_through_pathlib_is_a_bug() -> None:
    with pytest.raises(ValueError, match="pathlib"):
        paths.is_remote(Path("gs://bucket/data"))


@pytest.mark.parametrize("base", ["gs://bucket", "gs://bucket/run", "/data/run", "run"])
def test_the_parts_of_a_path_are_alike_for_both_kinds(base: str) -> None:
    path = paths.join(base, "train", "labels/a.b.json")
    assert path == f"{base}/train/labels/a.b.json"
    assert paths.parent(path) == f"{base}/train/labels"
    assert (paths.name_of(path), paths.stem(path), paths.suffix(path)) == ("a.b.json", "a.b", ".json")
    assert paths.relative(path, base) == "train/labels/a.b.json"
    with pytest.raises(ValueError, match=r"a\.b\.json"):
        paths.relative(path, f"{base}/trai")


def test_a_bucket_is_the_end_of_the_way_up() -> None:
    assert paths.parent("gs://bucket/a") == "gs://bucket"
    assert paths.parent("gs://bucket") == "gs://bucket"
    assert paths.split("gs://bucket/a/b/") == ("bucket", "a/b")


def test_absolute_paths_hold_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert paths.absolute("x") == str(tmp_path / "x")
    assert paths.absolute("gs://bucket/x/") == "gs://bucket/x"
