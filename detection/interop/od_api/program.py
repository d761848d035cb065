"""What `detection.interop.programs` knows of the Object Detection API."""

from detection.interop.od_api.checkpoints.centernet import CenterNetFormat
from detection.interop.od_api.checkpoints.efficientdet import EfficientDetFormat
from detection.interop.od_api.checkpoints.faster_rcnn import FasterRcnnFormat
from detection.interop.od_api.checkpoints.retinanet import RetinaNetFormat
from detection.interop.od_api.checkpoints.ssd import SsdFormat
from detection.interop.od_api.configuration.pipeline_config import PIPELINE_CONFIG, convert_pipeline_config
from detection.interop.programs import Program

FORMATS = (FasterRcnnFormat, EfficientDetFormat, RetinaNetFormat, SsdFormat, CenterNetFormat)
PROGRAM = Program(convert_pipeline_config, FORMATS, config_file=PIPELINE_CONFIG)
