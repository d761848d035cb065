"""TPU Mask R-CNN, the TF1 code of tensorflow/tpu: its parameters and its checkpoints."""
