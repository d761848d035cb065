"""Access to files and folders that a user or TFX names, local or `gs://`.

Remote paths are always `str`, never `pathlib.Path`; local ones are `str | Path`. Each function takes both kinds.

- `paths`: paths as text: `is_remote`, `join`, `parent`, `require_supported` and others.
- `files`: what is there: `exists`, `is_file`, `find_file`, `list_folder`, `walk_files`, `glob`; reads it: `read_bytes`,
  `read_text`, `open_stream`, `local_copy`; copies and removes it.
- `json_files`: `read_json`, `parse_file`; `tfrecord`: `find_shards`, `read_shard`.
- `atomic`: `write_bytes`, `write_json`, `new_file`, `new_directory`: what is written appears complete; `outputs`: the
  same for outputs of commands, which are tested before the work; `temporary`: `temporary_folder`, `scratch_folder`.
- `lock`: `lock_folder`, `open_working_folder`: one process at a time.
- `versions`: folders with numbers, of which a model server takes the highest; `checksums`: of the files of a model.

`file_system` has the protocol `Files`, which `local` and `gcs.file_system` implement; `files.file_system` chooses.
Imports between the modules go one way: `file_system`, `local` and `gcs`, `files`, then all others.

Errors are `DataError`s that name the path and say what to do; `ConfigError` for an unsupported path.
"""
