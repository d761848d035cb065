"""The formats of the TF Object Detection API's checkpoints, one for each family of detectors."""

from detection.interop.od_api.checkpoints.centernet import CenterNetFormat
from detection.interop.od_api.checkpoints.efficientdet import EfficientDetFormat
from detection.interop.od_api.checkpoints.faster_rcnn import FasterRcnnFormat
from detection.interop.od_api.checkpoints.retinanet import RetinaNetFormat
from detection.interop.od_api.checkpoints.ssd import SsdFormat

FORMATS = (FasterRcnnFormat, EfficientDetFormat, RetinaNetFormat, SsdFormat, CenterNetFormat)
