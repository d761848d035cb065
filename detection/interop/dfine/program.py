"""D-FINE, as one of `detection.interop.programs.PROGRAMS`."""

from detection.interop.dfine.checkpoint import DFineFormat
from detection.interop.programs import Program

PROGRAM = Program(convert=None, formats=(DFineFormat,))
