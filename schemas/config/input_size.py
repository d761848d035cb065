"""The network's input: `model.image_size`, and the section `model.resize`."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveInt

from schemas.config.section import Section
from schemas.quoting import quoted_json

AUTO_SIZE = "auto"  # `model.image_size` that depends on the sizes of the objects in the training images
MAX_SIDE = 8192  # pixels: anchors and shapes of the input are made before its memory is estimated


def _number_or_pair(value: Any) -> Any:
    sides = [value] if isinstance(value, int) else value
    if (
        isinstance(sides, list | tuple)
        and len(sides) == (1 if isinstance(value, int) else 2)
        and all(isinstance(side, int) and not isinstance(side, bool) and side > 0 for side in sides)
    ):
        if max(sides) > MAX_SIDE:
            raise ValueError(f"{quoted_json(value)} is above {MAX_SIDE} pixels, the longest side of an input")
        return value
    text = ""
    if isinstance(value, str) and [part.strip().isdigit() for part in value.lower().split("x")] == [True, True]:
        width, height = (int(part) for part in value.lower().split("x"))
        text = f"; google/automl writes width x height; use [{height}, {width}]"
    raise ValueError(f"{value!r} is neither a positive integer (pixels) nor a pair [height, width]{text}")


def _size_or_auto(value: Any) -> Any:
    return value if value == AUTO_SIZE else _number_or_pair(value)


ImageSize = Annotated[PositiveInt | tuple[PositiveInt, PositiveInt], BeforeValidator(_number_or_pair)]
OpenImageSize = Annotated[
    Literal["auto"] | PositiveInt | tuple[PositiveInt, PositiveInt], BeforeValidator(_size_or_auto)
]


def height_and_width(size: int | tuple[int, int]) -> tuple[int, int]:
    """Returns (height, width) of an `ImageSize`; one number is a square."""
    return (size, size) if isinstance(size, int) else size


class ResizeConfig(Section):
    """Resizing of images to the input, in training, evaluation and export."""

    mode: Literal["fit", "stretch", "short_side"] = Field(
        "fit",
        description="fit: scale to fit into image_size, keep the aspect (google/automl); stretch: scale each side to "
        "image_size (the OD API's fixed_shape_resizer); short_side: scale the short side to short_side, but the long "
        "side at most to long_side, keep the aspect (its keep_aspect_ratio_resizer, TPU Mask R-CNN's faster_rcnn); "
        "padding fills the rest of the input",
    )
    short_side: PositiveInt = Field(800, le=MAX_SIDE, description="for short_side: pixels; the OD API's min_dimension")
    long_side: PositiveInt = Field(
        1333,
        le=MAX_SIDE,
        description="for short_side: max pixels, and both sides of the input if image_size is not set; the OD API's "
        "max_dimension",
    )
    half_pixel_centers: bool = Field(
        True,
        description="bilinear samples are at the centers of pixels (tf.image.resize); false: at their corners, as in "
        "TensorFlow 1 and the OD API, required by its weights for the same detections",
    )
    pad_to_multiple: PositiveInt = Field(
        1, le=1024, description="pad the input below and to the right until its sides are multiples of this"
    )

    def _check_keys(self) -> None:
        self.refuse(["short_side", "long_side"], f"under mode = {self.mode}", when=self.mode != "short_side")
        if self.short_side > self.long_side:
            raise ValueError(f"short_side = {self.short_side} is above long_side = {self.long_side}")

    def require_fit(self, size: tuple[int, int]) -> None:
        """Refuses an input in which `short_side` and `long_side` would have no effect.

        Args:
            size: (height, width) of the input, pixels.

        Raises:
            ValueError: the input is too small.
        """
        if self.mode == "short_side" and (min(size) < self.short_side or max(size) < self.long_side):
            raise ValueError(
                f"image_size = {list(size)} is too small for resize.short_side = {self.short_side} and "
                f"long_side = {self.long_side}: its sides have to be at least as long"
            )
