"""Export of detectors: SavedModel, LiteRT, ONNX, MediaPipe."""
