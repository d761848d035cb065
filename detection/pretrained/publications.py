"""Weights published by others: names, origins, licences."""

from typing import Any, NamedTuple

from detection.pretrained.efficientnet_lite import LITE_PACKAGES

COCO, IMAGENET = "coco", "imagenet"

_AUTOML = "https://storage.googleapis.com/cloud-tpu-checkpoints/efficientdet"


class Publication(NamedTuple):
    """Published weights.

    Attributes:
        name: detector (`coco`) or backbone (`imagenet`).
        weights: `coco` or `imagenet`, the value of `model.weights`.
        origin: URL of the archive, or program or package with the file.
        licence: SPDX identifier.
        megabytes: rounded size of the download; None: unknown.
    """

    name: str
    weights: str
    origin: str
    licence: str
    megabytes: int | None

    def as_json(self) -> dict[str, Any]:
        """Returns the publication for reports."""
        return {"name": self.name, "weights": self.weights, "origin": self.origin, "licence": self.licence}


def _automl(variant: str, folder: str, suffix: str) -> Publication:
    name = f"efficientdet-{variant}"
    return Publication(name, COCO, f"{_AUTOML}/{folder}/{name}{suffix}", "Apache-2.0", None)


def _keras(backbone: str, licence: str, megabytes: int) -> Publication:
    return Publication(backbone, IMAGENET, "keras.applications", licence, megabytes)


def _lite(backbone: str, megabytes: int) -> Publication:
    return Publication(backbone, IMAGENET, f"package {LITE_PACKAGES[backbone][0]} 0.1.0", "Apache-2.0", megabytes)


# As linked in google/automl's README; trained on COCO 2017 with 90 class outputs.
COCO_DETECTORS = {
    one.name: one
    for one in (
        *(_automl(variant, "coco2", ".tar.gz") for variant in ("d0", "d1", "d2", "d3", "d4", "d5", "d6", "d7", "d7x")),
        *(_automl(variant, "coco", ".tgz") for variant in ("lite0", "lite1", "lite2", "lite3", "lite3x", "lite4")),
    )
}
IMAGENET_BACKBONES = {
    one.name: one
    for one in (
        *(_lite(f"efficientnet-lite{number}", size) for number, size in enumerate((17, 20, 23))),
        *(
            _keras(f"efficientnet-b{number}", "Apache-2.0", size)
            for number, size in enumerate((17, 27, 32, 44, 72, 115, 165, 258))
        ),
        *(_keras(f"resnet-{layers}", "MIT", size) for layers, size in ((50, 95), (101, 171), (152, 235))),
        *(_keras(f"mobilenet-{version}", "Apache-2.0", size) for version, size in (("v1", 17), ("v2", 9))),
    )
}
