"""What `detection.interop.programs` knows of the Object Detection API."""

from detection.interop.od_api.checkpoints.centernet import OD_API_CENTERNET
from detection.interop.od_api.checkpoints.efficientdet import OD_API_EFFICIENTDET
from detection.interop.od_api.checkpoints.faster_rcnn import OD_API
from detection.interop.od_api.checkpoints.retinanet import OD_API_RETINANET
from detection.interop.od_api.checkpoints.ssd import OD_API_SSD
from detection.interop.od_api.configuration.pipeline_config import PIPELINE_CONFIG, convert_pipeline_config
from detection.interop.programs import Program

FORMATS = (OD_API, OD_API_EFFICIENTDET, OD_API_RETINANET, OD_API_SSD, OD_API_CENTERNET)
PROGRAM = Program(convert_pipeline_config, FORMATS, config_file=PIPELINE_CONFIG)
