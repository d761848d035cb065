"""Metadata that MediaPipe Tasks reads in a LiteRT file: written, read and described without TensorFlow."""
