"""Options shared by the families of dense detectors; each family sets its defaults."""

from typing import Annotated

from pydantic import Field

from detection.models.config import DetectorConfig, PyramidConfig
from detection.models.detector import Activation
from detection.models.heads.dense import HeadOptions
from detection.models.heads.dense_losses import DenseLossOptions
from detection.models.heads.matcher import Matcher
from detection.models.heads.postprocess import BoxPostprocess
from detection.models.necks.bifpn import BiFpnOptions
from detection.models.necks.fpn import FpnOptions

NeckActivation = Annotated[Activation, Field(description="activation of backbone, neck and heads")]


class DenseConfig(DetectorConfig):
    """Options of a dense detector: its matcher, its losses, its post-processing."""

    activation: NeckActivation
    matcher: Matcher = Matcher()
    loss: DenseLossOptions = DenseLossOptions()
    postprocess: BoxPostprocess = BoxPostprocess()


class SharedHeadsConfig(DenseConfig, PyramidConfig):
    """Options of a dense detector whose heads have the same layers for all levels."""

    neck: BiFpnOptions | FpnOptions
    head: HeadOptions = HeadOptions()
