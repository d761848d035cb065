"""Conversion of detectors to files that run elsewhere: SavedModel, LiteRT, ONNX."""
