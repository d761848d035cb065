"""What `detection.interop.programs` knows of the Object Detection API."""

from detection.interop.od_api.checkpoints.formats import FORMATS
from detection.interop.od_api.configuration.pipeline_config import PIPELINE_CONFIG, convert_pipeline_config
from detection.interop.programs import Program

PROGRAM = Program(convert_pipeline_config, FORMATS, config_file=PIPELINE_CONFIG)
