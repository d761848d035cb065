"""The files in which a detector is run: SavedModel, LiteRT and ONNX."""
