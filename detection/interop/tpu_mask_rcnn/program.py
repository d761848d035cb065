"""What `detection.interop.programs` knows of TPU Mask R-CNN."""

from detection.interop.programs import Program
from detection.interop.tpu_mask_rcnn.checkpoint import TpuMaskRcnnFormat
from detection.interop.tpu_mask_rcnn.params import convert_tpu_mask_rcnn

PROGRAM = Program(convert_tpu_mask_rcnn, (TpuMaskRcnnFormat,))
