"""What `detection.interop.programs` knows of google/automl."""

from detection.interop.automl.checkpoint import AutomlFormat
from detection.interop.automl.hparams import convert_automl
from detection.interop.programs import Program

PROGRAM = Program(convert_automl, (AutomlFormat,))
