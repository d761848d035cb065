"""Access to files and folders that a user or TFX names, local or `gs://`.

Remote paths are always `str`, never `pathlib.Path`; local ones are `str | Path`.

- `paths`: `require_supported`, `is_remote`, `join`, `parent`, `name_of`, `with_name`, `relative`, `escape`: text only.
- `file_system`: `file_system(path)`, the one place that chooses between `local.LocalFiles` and
  `gcs.file_system.CloudStorage`.
- `files`: `exists`, `resolve`, `is_file`, `is_dir`, `list_folder`, `walk_files`, `glob`, `state`, `copy_file`,
  `remove_file`, `remove_folder`, `make_folder`: the same answers for both kinds of path.
- `reading`: `read_bytes`, `read_range`, `read_text`, `open_stream`; `json_files`: `read_json`, `parse_file`.
- `atomic`: `write_bytes`, `write_text`, `write_json`, `create_json`, `new_file`, `new_path`, `new_directory`,
  `shared_directory`, `require_writable`: files and folders appear complete; `temporary`: `temporary_folder`.
- `output_checks`: `require_output_file`, `require_output_folder`, `require_room`: outputs are tested before the work.
- `staging`: `local_copy`: a remote file or folder as a local one, for code that maps or seeks.
- `mirror`: `working_folder`: a local folder to work in, pulled from and pushed to a remote one.
- `versions`: `numbered_versions`, `newest_version`: folders with numbers, of which a model server takes the highest;
  `publication`: `publish_version`, `remove_version`.
- `lock`: `lock_folder`: one process at a time.
- `tfrecord`: `find_shards`, `read_shard`.
- `gcs`: Google Cloud Storage itself.

When is a folder complete? `markers` lists the names that tell; `atomic` and `gcs.folders` write them.

Errors are `DataError`s that name the path and say what to do; `ConfigError` for an unsupported path.
"""
