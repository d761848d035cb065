"""The size of the network's input: which objects are too small in it, and `model.image_size: auto`."""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from detection.datasets.statistics import SplitSummary
from detection.input_pipeline.network_input import input_scale
from detection.models.registry import detector_config
from detection.types import Resizing
from schemas.config.config import Config
from schemas.config.config_io import parse_config
from schemas.config.input_size import AUTO_SIZE

SMALL = 8  # pixels of the network input: the stride of the finest feature level of most detectors
MOST_SMALL = 0.05  # max fraction of smaller objects: with fewer, a larger input is worth less than more steps
_FACTORS = (1.25, 1.5, 2.0, 3.0, 4.0)  # by which the sides of the input may grow
_LEAST = 0.8  # smallest input of `auto`, as a fraction of the detector's own
_MOST = 2.0  # factor of the sides up to which `auto` chooses: four times the work of a step
_MULTIPLE = 128  # pixels: the stride of the coarsest feature level of most detectors
_OBLONG = 0.75  # short side / long side of inputs that are not square
_LEAST_GAIN = 1.1  # factor of the share of an oblong input that images fill, over that of a square: others stay square


class Fitting(NamedTuple):
    """An input, and the objects in it.

    resizing: the input.
    small: number of objects smaller than SMALL.
    instances: number of objects.
    """

    resizing: Resizing
    small: int
    instances: int

    @property
    def shows_most(self) -> bool:
        """At most the fraction MOST_SMALL of the objects are small."""
        return self.small <= MOST_SMALL * self.instances

    @property
    def share(self) -> str:
        """The small objects among all, as words."""
        few = "" if self.shows_most else f" ({100 * self.small / self.instances:.0f} %)"
        return f"{self.small:,} of {self.instances:,}{few}"

    @property
    def sides(self) -> str:
        """Width and height, as words."""
        height, width = self.resizing.size
        return f"{width} x {height}"

    @property
    def flags(self) -> str:
        """Flags that set this input."""
        height, width = self.resizing.size
        size = f"--set model.image_size={height if height == width else f'[{height},{width}]'}"
        if self.resizing.mode != "short_side":
            return size
        sides = (f"--set model.resize.{name}={getattr(self.resizing, name)}" for name in ("short_side", "long_side"))
        return " ".join([size, *sides])


def with_image_size(config: Config, trained: SplitSummary) -> Config:
    """Returns the configuration with a size in place of `model.image_size: auto`.

    Args:
        config: the run's configuration.
        trained: of the training images; without objects, the detector's own size remains.

    Raises:
        ConfigError: unknown detector, or invalid overrides.
    """
    if config.model.image_size != AUTO_SIZE:
        return config
    tree = config.model_dump(mode="json")
    tree["model"]["image_size"] = list(chosen[0].resizing.size) if (chosen := _chosen(trained, config)) else None
    return parse_config(tree)


def size_fact(trained: SplitSummary, config: Config) -> tuple[str, str] | None:
    """Describes the input for the objects of a data set, with advice; None: no objects.

    Args:
        trained: of the training images.
        config: the run's configuration; `auto` is what a training would choose.

    Raises:
        ConfigError: unknown detector, or invalid overrides.
    """
    chosen = _chosen(trained, config)
    if chosen:
        now, first, *_ = chosen
        work = math.prod(now.resizing.size) / math.prod(first.resizing.size)
        text = f"model.image_size = auto: {now.sides}, objects smaller than {SMALL} x {SMALL} pixels: {now.share}"
        if work > 1:
            text += f"; at {first.sides}: {first.share}, with 1/{work:.2g} of the work per step"
    elif trained.relative_sizes.total():
        now = _fitting(trained, _resizing(config))
        text = f"objects smaller than {SMALL} x {SMALL} pixels of the {now.sides} input: {now.share}"
    else:
        return None
    if now.shows_most:
        return text, ""
    larger = (_fitting(trained, enlarged(now.resizing, factor)) for factor in _FACTORS)
    enough = next((one for one in larger if one.shows_most), None)
    if enough is None:
        return text, f"Even {_FACTORS[-1]:g} times the input is too small: cut the images into tiles."
    return text, f"Most of them will be missed. Use a larger input: {enough.flags}"


def _chosen(trained: SplitSummary, config: Config) -> Sequence[Fitting]:
    """Returns what `auto` chooses, and the smallest input among the candidates; (): it has nothing to choose."""
    fixed = config.model.image_size != AUTO_SIZE or "image_size" in config.model.overrides
    if fixed or config.model.resize.mode == "short_side" or not trained.relative_sizes.total():
        return ()
    own = _oblong(trained, _resizing(config))
    candidates = dict.fromkeys(enlarged(own, _LEAST * factor) for factor in (1.0, *_FACTORS) if factor <= _MOST)
    fittings = [_fitting(trained, one) for one in candidates]
    return next((one for one in fittings if one.shows_most), fittings[-1]), fittings[0]


def _oblong(trained: SplitSummary, own: Resizing) -> Resizing:
    """Returns a square input with a shorter height or width where images fill more of it: padding is work for nothing.

    The images of each object count, and an input that fits most of them shows the others smaller.
    """
    height, width = own.size
    if height != width or own.mode != "fit":
        return own

    def filled(one: Resizing) -> float:
        pixels = sum(count * _image_pixels(aspect, one) for _, aspect, count in trained.sizes_in_images())
        return pixels / math.prod(one.size)

    short = round(_OBLONG * width)
    best = max((own._replace(size=size) for size in ((short, width), (height, short))), key=filled)
    return best if filled(best) > _LEAST_GAIN * filled(own) else own


def _fitting(trained: SplitSummary, resizing: Resizing) -> Fitting:
    return Fitting(resizing, _count_small(trained, resizing), trained.relative_sizes.total())


def _resizing(config: Config) -> Resizing:
    model = config.model
    # Padding does not enlarge the image.
    resize = model.resize.model_copy(update={"pad_to_multiple": 1})
    preset: Any = detector_config(model.name, image_size=model.image_size, resize=resize, overrides=model.overrides)
    return Resizing(preset.image_size, resize.mode, resize.short_side, resize.long_side)


def enlarged(resizing: Resizing, factor: float) -> Resizing:
    """Returns an input at least the factor times another: the long side is a multiple of _MULTIPLE, the short of 32."""
    long = max(resizing.size)
    scaled = math.ceil(long * factor / _MULTIPLE) * _MULTIPLE
    height, width = (math.ceil(side * scaled / long / 32) * 32 for side in resizing.size)
    short_side, long_side = (round(side * factor) for side in (resizing.short_side, resizing.long_side))
    return Resizing((height, width), resizing.mode, short_side, long_side)


def _count_small(trained: SplitSummary, resizing: Resizing) -> int:
    def scale_of(aspect: float) -> float:
        """Returns pixels of the input per longer side of an image, as the root of their product in height and width."""
        return math.sqrt(_image_pixels(aspect, resizing) * max(aspect, 1 / aspect))

    return sum(count for size, aspect, count in trained.sizes_in_images() if size * scale_of(aspect) < SMALL)


@functools.cache
def _image_pixels(aspect: float, resizing: Resizing) -> float:
    """Returns the pixels of the input that an image of an aspect, width / height, fills."""
    image = np.array([1 / max(aspect, 1.0), min(aspect, 1.0)], np.float32)
    return float(np.prod(input_scale(image, resizing).numpy() * image))
