"""Which files a path means."""

import os
import shutil
from pathlib import Path

import pytest
import tensorflow as tf

from detection.storage.files import local_copy
from detection.weights.locate import (
    checkpoint_of_training,
    local_prefix,
    locate_model,
    locate_weights,
    weights_fingerprint,
)
from schemas.artifacts import (
    ARTIFACTS,
    BEST,
    CHECKPOINTS,
    CONFIG_YAML,
    EXPORTED_FROM_JSON,
    EXTRA_FILES,
    LABELS_JSON,
    METRICS_JSON,
    PUSHED_MODELS,
    SAVED_MODEL,
    SUMMARY_JSON,
    VALIDATION,
)
from schemas.errors import DataError
from tests.storage_emulator.fixture import Bucket
from tests.storage_emulator.folders import upload


def _checkpoint(prefix: Path) -> Path:
    prefix.parent.mkdir(parents=True, exist_ok=True)
    return Path(tf.train.Checkpoint(x=tf.Variable(1.0)).write(str(prefix)))


def _saved_model(folder: Path) -> Path:
    _checkpoint(folder / "variables" / "variables")
    (folder / "saved_model.pb").touch()
    return folder


def _labels(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("[]")
    return path


def _located(path: str | Path) -> tuple[Path, Path | None]:
    files = locate_weights(path)
    return Path(files.prefix), None if files.labels is None else Path(files.labels)


def test_a_checkpoint_is_meant_with_and_without_its_ending(tmp_path: Path) -> None:
    prefix = _checkpoint(tmp_path / "model.ckpt-7")
    assert _located(prefix) == _located(f"{prefix}.index") == (prefix, None)


def test_of_a_folder_the_newest_counts(tmp_path: Path) -> None:
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(x=tf.Variable(1.0)), str(tmp_path), max_to_keep=5)
    for step in (900, 1000):
        manager.save(checkpoint_number=step)
    assert _located(tmp_path)[0] == tmp_path / "ckpt-1000"
    (tmp_path / "checkpoint").unlink()
    assert _located(tmp_path)[0] == tmp_path / "ckpt-1000", "by number, 900 < 1000"
    (tmp_path / "checkpoint").write_text(f'model_checkpoint_path: "{tmp_path}/before/it/was/moved/ckpt-900"')
    assert _located(tmp_path)[0] == tmp_path / "ckpt-900"


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe", b"model", *(f'model_checkpoint_path: "{path}"'.encode() for path in ("", "ckpt-9[", "\\000"))],
)
def test_a_list_that_names_no_checkpoint_does_not_count(content: bytes, tmp_path: Path) -> None:
    prefixes = [_checkpoint(tmp_path / f"ckpt-{step}") for step in (900, 1000)]
    (tmp_path / "checkpoint").write_bytes(content)
    assert _located(tmp_path)[0] == prefixes[1]


def test_no_other_place_is_asked_for_what_a_list_names(tmp_path: Path) -> None:
    prefix = _checkpoint(tmp_path / "ckpt-900")
    for path in ("bad://x/ckpt-9", "gs://no-such-bucket/ckpt-9", str(_checkpoint(tmp_path / "elsewhere" / "ckpt-9"))):
        (tmp_path / "checkpoint").write_text(f'model_checkpoint_path: "{path}"')
        assert _located(tmp_path)[0] == prefix
    (tmp_path / "checkpoint").unlink()
    os.mkfifo(tmp_path / "checkpoint")
    assert _located(tmp_path)[0] == prefix


def test_a_checkpoint_has_the_categories_of_its_training(tmp_path: Path) -> None:
    prefix = _checkpoint(tmp_path / CHECKPOINTS / "ckpt-4")
    _saved_model(tmp_path / SAVED_MODEL)
    assert _located(tmp_path) == (prefix, None)
    labels = _labels(tmp_path / LABELS_JSON)
    assert _located(tmp_path) == _located(prefix) == (prefix, labels)
    best = _checkpoint(tmp_path / VALIDATION / BEST / "ckpt-2")
    assert _located(best.parent) == (best, labels)
    elsewhere = _checkpoint(tmp_path / "mine" / "ckpt-2")
    assert _located(elsewhere) == (elsewhere, None), "a file of that name further up means nothing"


@pytest.fixture(scope="module")
def validated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training of 60 steps whose best checkpoint is that of step 40; a kill left that of step 50 beside it."""
    run = tmp_path_factory.mktemp("validated")
    for prefix in (f"{CHECKPOINTS}/ckpt-20", f"{CHECKPOINTS}/ckpt-60", f"{VALIDATION}/{BEST}/ckpt-40"):
        _checkpoint(run / prefix)
    _checkpoint(run / VALIDATION / BEST / "ckpt-50")
    (run / VALIDATION / BEST / METRICS_JSON).write_text('{"step": 40}')
    return run


def _configured(run: Path, target: Path, export: str) -> Path:
    shutil.copytree(run, target)
    (target / CONFIG_YAML).write_text(f"train: {{validation: {{every: 20, export: {export}}}}}")
    return target


def test_a_training_means_the_checkpoint_that_it_exports(validated: Path, tmp_path: Path) -> None:
    best, newest = f"{VALIDATION}/{BEST}/ckpt-40", f"{CHECKPOINTS}/ckpt-60"
    for export, expected in (("auto", best), ("best", best), ("final", newest)):
        run = _configured(validated, tmp_path / export, export)
        for path in (run, run / CHECKPOINTS):
            assert _located(path)[0] == run / expected
            assert checkpoint_of_training(path) == str(run / expected)
            assert checkpoint_of_training(path, "best") == str(run / best)
            assert checkpoint_of_training(path, "newest") == str(run / newest)
            assert checkpoint_of_training(path, 20) == str(run / CHECKPOINTS / "ckpt-20")
            assert checkpoint_of_training(path, 40) == str(run / best)
    with pytest.raises(DataError, match=r"final: no checkpoint of step 30; steps are 20, 40, 50, 60\."):
        checkpoint_of_training(run, 30)


def test_an_export_counts_until_the_next_one(validated: Path, tmp_path: Path) -> None:
    """A training is continued after its export, and has a better checkpoint since."""
    run = _configured(validated, tmp_path / "run", "auto")
    exported = run / SAVED_MODEL / EXTRA_FILES / EXPORTED_FROM_JSON
    exported.parent.mkdir(parents=True)
    exported.write_text('{"step": 20, "weights": "ema"}')
    assert _located(run)[0] == run / CHECKPOINTS / "ckpt-20"
    exported.write_text('{"step": 10, "weights": "ema"}')
    assert _located(run)[0] == run / VALIDATION / BEST / "ckpt-40", "that of step 10 was removed"


def test_without_validation_the_best_is_the_newest(tmp_path: Path) -> None:
    newest = _checkpoint(tmp_path / CHECKPOINTS / "ckpt-9")
    _checkpoint(tmp_path / CHECKPOINTS / "ckpt-4")
    for choice in (None, "best", "newest"):
        assert checkpoint_of_training(tmp_path, choice) == str(newest)
    for model in (newest, tmp_path / "elsewhere"):
        assert checkpoint_of_training(model) is None
        assert locate_model(model) == str(model)
        with pytest.raises(DataError, match="not the output of a training, so --checkpoint best does not apply"):
            locate_model(model, "best")


def test_a_push_directory_means_its_newest_version(tmp_path: Path, gcs: Bucket) -> None:
    for version in ("9", "10", "old"):
        _saved_model(tmp_path / version)
    (tmp_path / "11").mkdir()
    remote = upload(tmp_path, f"{gcs.path}/serving")
    for directory in (str(tmp_path), remote):
        assert locate_weights(directory).saved_model == locate_model(directory) == f"{directory}/10"


def test_the_root_of_runs_means_what_they_pushed_last(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    trained = root / ARTIFACTS / "DetectionTrainer" / "model_run"
    for number in (9, 12):
        (trained / str(number)).mkdir(parents=True)
    (root / SUMMARY_JSON).write_text("{}")
    (root / CONFIG_YAML).write_text("model: {name: efficientdet-nano}\n")
    for find in (locate_model, locate_weights):
        with pytest.raises(DataError, match=rf"runs have pushed no model: .*summary.json .* pass {trained}/12\."):
            find(root)
    for folder in (root / PUSHED_MODELS, tmp_path / "elsewhere"):
        newest = _saved_model(folder / "8")
        _saved_model(folder / "7")
        assert locate_model(root) == str(newest)
        assert _located(root)[0] == newest / "variables" / "variables"
        (root / CONFIG_YAML).write_text(f"push: {{directory: {tmp_path / 'elsewhere'}}}\n")
    (root / SUMMARY_JSON).unlink()
    assert locate_model(root) == str(root / PUSHED_MODELS / "8")


def test_the_configuration_lies_beside_the_categories(tmp_path: Path) -> None:
    prefix = _checkpoint(tmp_path / CHECKPOINTS / "ckpt-4")
    model = _saved_model(tmp_path / SAVED_MODEL)
    assert (locate_weights(prefix).config, locate_weights(model).config) == (None, None)
    for folder in (tmp_path, model / EXTRA_FILES):
        (folder / CONFIG_YAML).parent.mkdir(exist_ok=True)
        (folder / CONFIG_YAML).touch()
    assert locate_weights(prefix) == (str(prefix), None, str(tmp_path / CONFIG_YAML), None)
    assert locate_weights(model)[2:] == (str(model / EXTRA_FILES / CONFIG_YAML), str(model))


def test_a_saved_model_is_found_where_it_lies_and_one_folder_below(tmp_path: Path) -> None:
    model = _saved_model(tmp_path / "Format-Serving")
    labels = _labels(model / EXTRA_FILES / LABELS_JSON)
    assert _located(model) == _located(tmp_path) == (model / "variables" / "variables", labels)
    _saved_model(tmp_path / "other")
    with pytest.raises(DataError, match=r"has several models: Format-Serving, other\. Specify one"):
        locate_weights(tmp_path)


def test_what_holds_no_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.h5").touch()
    for path in (tmp_path, tmp_path / "weights.h5"):
        with pytest.raises(DataError, match=r"no weights\. Specify a checkpoint \(\.\.\./ckpt-500\)"):
            locate_weights(path)
    with pytest.raises(DataError, match=r"nowhere: no such file or folder\. Specify a checkpoint"):
        locate_weights(tmp_path / "nowhere")
    (tmp_path / "saved_model.pb").touch()
    with pytest.raises(DataError, match="a SavedModel without variables"):
        locate_weights(tmp_path)


def test_remote_paths_mean_what_local_ones_mean(tmp_path: Path, gcs: Bucket) -> None:
    run, model = tmp_path / "run", _saved_model(tmp_path / "model" / "Format-Serving")
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(x=tf.Variable(1.0)), str(run / CHECKPOINTS), max_to_keep=5)
    for step in (900, 1000):
        manager.save(checkpoint_number=step)
    _labels(run / LABELS_JSON)
    _labels(model / EXTRA_FILES / LABELS_JSON)
    remote = upload(tmp_path, f"{gcs.path}/all")
    for name in ("run", f"run/{CHECKPOINTS}", f"run/{CHECKPOINTS}/ckpt-900.index", "model", "model/Format-Serving"):
        files, local = locate_weights(f"{remote}/{name}"), locate_weights(tmp_path / name)
        assert files.prefix == local.prefix.replace(str(tmp_path), remote)
        assert files.labels == str(local.labels).replace(str(tmp_path), remote)
        fingerprint = weights_fingerprint(checkpoint=f"{remote}/{name}", backbone_weights=None)
        assert fingerprint == weights_fingerprint(checkpoint=str(tmp_path / name), backbone_weights=None)
    with pytest.raises(DataError, match=r"nowhere: no such file or folder\. Specify a checkpoint"):
        locate_weights(f"{remote}/nowhere")


def test_of_a_remote_folder_only_the_checkpoint_itself_is_copied(tmp_path: Path, gcs: Bucket) -> None:
    for step in (1, 10):
        _checkpoint(tmp_path / f"ckpt-{step}")
    remote = upload(tmp_path, f"{gcs.path}/checkpoints")
    prefix = Path(local_prefix(f"{remote}/ckpt-1"))
    assert sorted(path.name for path in prefix.parent.iterdir()) == ["ckpt-1.data-00000-of-00001", "ckpt-1.index"]
    assert prefix.parent != local_copy(remote)
    assert tf.train.load_checkpoint(str(prefix)).get_tensor("x/.ATTRIBUTES/VARIABLE_VALUE") == 1.0
