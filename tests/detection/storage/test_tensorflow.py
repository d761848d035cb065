"""What TensorFlow itself does at gs://, on the emulator."""

import numpy as np
import tensorflow as tf

from detection.storage import files
from detection.storage.tfrecord import find_shards, read_shard
from tests.storage_emulator.fixture import Bucket


def test_files_records_and_checkpoints_pass_between_tensorflow_and_storage(gcs: Bucket) -> None:
    path = f"{gcs.path}/run"
    with tf.io.gfile.GFile(f"{path}/text", "w") as file:
        file.write("hello")
    assert files.walk_files(path) == ["text"]
    tf.io.gfile.rename(f"{path}/text", f"{path}/moved")
    tf.io.gfile.makedirs(f"{path}/empty")
    assert (files.list_folder(path), files.is_dir(f"{path}/empty")) == (["empty", "moved"], True)
    records = [bytes([number]) * 1000 * number for number in range(20)]
    for options in (None, "GZIP"):
        shard = f"{path}/records/shard-{options}"
        with tf.io.TFRecordWriter(shard, options) as writer:
            for record in records:
                writer.write(record)
        assert list(read_shard(shard)) == records
        assert [one.numpy() for one in tf.data.TFRecordDataset(shard, options)] == records
    variable = tf.Variable(np.arange(1000, dtype=np.float32))
    saved = tf.train.Checkpoint(x=variable).save(f"{path}/checkpoints/ckpt")
    assert tf.train.latest_checkpoint(f"{path}/checkpoints") == saved
    restored = tf.Variable(tf.zeros(1000))
    tf.train.Checkpoint(x=restored).restore(saved).assert_consumed()
    np.testing.assert_array_equal(restored.numpy(), variable.numpy())


def test_shards_are_found_as_locally(gcs: Bucket, tmp_path) -> None:  # type: ignore[no-untyped-def]
    from detection.storage.atomic import write_bytes

    for base in (f"{gcs.path}/data", str(tmp_path / "data")):
        for name in ["a[1]/s-0", "a[1]/s-1", "a[1]/.h", "a[1]/_x", "a[1]/labels.json", "a[1]/deep/s-2", "a1/s-3"]:
            write_bytes(f"{base}/{name}", b"")
    for where in ("a[1]", "a[1]/s-*", "a[1]/*", "*/s-[01]", "a[1]/s-0", "a?/*"):
        remote, local = find_shards(f"{gcs.path}/data/{where}"), find_shards(tmp_path / "data" / where)
        assert [path.removeprefix(gcs.path) for path in remote] == [path.removeprefix(str(tmp_path)) for path in local]
