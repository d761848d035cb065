"""MediaPipe Tasks' metadata in LiteRT files: written, read and described without TensorFlow."""
