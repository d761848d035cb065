"""The commands of `pipeline_runner.py`, one module each, imported when used."""
