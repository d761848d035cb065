"""The common parts of the TF Object Detection API's formats, and Keras' names of their backbones' layers."""

import abc
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from detection.interop.od_api.checkpoints.layers import alike, backbone_of, is_alone, with_layer_names
from detection.interop.od_api.checkpoints.names import FPN_EPSILON, resnet_of_variables, unscoped_names
from detection.interop.od_api.configuration.parts import RESNET, RESNET_FUNCTION
from detection.models.backbones.efficientnet_spec import mobilenet_layer
from detection.models.backbones.resnet import RESNETS, application_layer
from detection.weights.checkpoint_format import CheckpointFormat, Shapes
from schemas.errors import DataError


class OdApiFormat(CheckpointFormat):
    """A checkpoint of the Object Detection API: a detector, or a backbone alone.

    Attributes:
        backbone: name of the backbone, if the checkpoint has nothing else that is known; None: a detector.
    """

    title = "the Object Detection API"

    def __init__(self, shapes: Shapes, where: str) -> None:
        super().__init__(shapes, where)
        self.backbone = self.known_backbone() if is_alone(shapes) else None

    @classmethod
    def names_of(cls, theirs: Collection[str]) -> Mapping[str, str]:
        """Implements `CheckpointFormat.names_of`."""
        named = with_layer_names(theirs)
        return {here: named[name] for here, name in cls.unscoped(named).items()}

    @classmethod
    def unscoped(cls, names: Collection[str]) -> Mapping[str, str]:
        """Returns the names of a network's variables by names of the format; `names` has Keras' layers."""
        return unscoped_names(names)

    def known_backbone(self) -> str | None:
        """Returns the name of the checkpoint's backbone; None: it has no known one."""
        names = {*self.names, *unscoped_names(with_layer_names(self.shapes))}
        return backbone_of({name.rpartition("/")[0] for name in names})

    @property
    def is_known(self) -> bool:
        """Implements `CheckpointFormat.is_known`."""
        return self.backbone is not None or super().is_known

    @abc.abstractmethod
    def network(self, config: Any) -> Mapping[str, Any]:
        """Returns `overrides` of a detector."""

    @abc.abstractmethod
    def classes(self, config: Any) -> int | None:
        """Returns `class_count` of a detector."""

    def overrides(self, config: Any) -> Mapping[str, Any]:
        """Implements `CheckpointFormat.overrides`."""
        return self.network(config) if self.backbone is None else self.function(self.backbone)

    def class_count(self, config: Any) -> int | None:
        """Implements `CheckpointFormat.class_count`."""
        return self.classes(config) if self.backbone is None else None

    @classmethod
    def function(cls, backbone: str) -> Mapping[str, Any]:
        """Returns the fields of `model.overrides` with which a backbone alone is the original's."""
        if backbone in RESNETS:
            return RESNET | RESNET_FUNCTION
        return {"activation": "relu6", "batch_norm.epsilon": FPN_EPSILON} if backbone.startswith("mobilenet") else {}

    def require_variant(self, config: Any, name: str) -> None:
        """Requires, of a backbone alone, that it is the detector's.

        Raises:
            DataError: it is not, or the detector's network is another one.
        """
        if self.backbone is None:
            super().require_variant(config, name)
        elif config.backbone.name not in alike(self.backbone):
            raise DataError(
                f"{self.where}: the checkpoint is of {self.backbone} alone, but {name} has {config.backbone.name}. "
                f"Choose a detector that has {self.backbone}."
            )

    @classmethod
    def resize(cls, config: Any) -> Mapping[str, Any]:
        """Implements `CheckpointFormat.resize`."""
        return {"half_pixel_centers": False}


class SsdBackboneFormat(OdApiFormat):
    """A checkpoint of an SSD with a MobileNet or a ResNet, with or without an FPN."""

    postprocess: ClassVar = {"score_threshold": 1e-8, "iou_threshold": 0.6}
    networks: ClassVar[str]  # title of the networks that can be imported

    @classmethod
    def resize(cls, config: Any) -> Mapping[str, Any]:
        """Implements `CheckpointFormat.resize`, for a fixed_shape_resizer."""
        return {"mode": "stretch", "half_pixel_centers": False}

    @classmethod
    def structures(cls, config: Any) -> tuple[str]:
        """Returns the structure of a configured network: its backbone.

        Raises:
            ConfigError: the original has no such network.
        """
        cls.require_backbone(config, cls.networks)
        return (config.backbone.name,)

    def structure(self) -> str:
        """Returns the name of the backbone, or a description of an unknown ResNet.

        Raises:
            DataError: no MobileNet and no ResNet.
        """
        backbone = backbone_of({name.rpartition("/")[0] for name in self.names}) or ""
        return backbone if backbone.startswith("mobilenet") else resnet_of_variables(self.shapes, where=self.where)


def backbone_layer(backbone: str, layer: str) -> str:
    """Returns Keras' name of a backbone's layer, given its path below our backbone."""
    return application_layer(layer) if backbone.startswith("resnet-") else mobilenet_layer(backbone, layer)
