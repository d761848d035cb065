"""TFX components: one folder each, `component.py` is the contract, `executor.py` the work."""
