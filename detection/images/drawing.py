"""Draws detections: boxes with tags, masks, keypoints, and contact sheets of such pictures.

Used for README, TensorBoard, reports and `predict`.  Requires NumPy and Pillow, and pycocotools for masks.
"""

import colorsys
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from detection.images.tags import Color, Rectangle, draw_tags, frame_of, line_height, load_font

Picture = npt.NDArray[np.uint8]
Skeleton = Sequence[tuple[int, int]]  # COCO's: pairs of numbers of keypoints, from 1
Edge = tuple[float, float, float, float]  # x, y of both ends

_GOLDEN_RATIO = 0.618033988749895  # multiples of it, modulo 1, are evenly spread for any number of them
_PAPER: Color = (255, 255, 255)
_INK: Color = (32, 32, 32)
_FILL_OPACITY = 28  # 0 to 255
_MASK_OPACITY = 110  # 0 to 255
# Shades of a colour, for instances of one class: a grey level to mix in, and its fraction. Keeps the hue.
_SHADES = ((0, 0.0), (255, 0.6), (0, 0.4), (0, 0.62))


class LineStyle(NamedTuple):
    """Style of a box.

    color: (red, green, blue), 0..255.
    dash: lengths of a stroke, a gap, a stroke, ..., in line widths; (): an unbroken line.
    """

    color: Color
    dash: tuple[float, ...] = ()


def category_color(category_id: int) -> Color:
    """Returns (red, green, blue), 0..255: a fixed colour per id, different from neighbouring ids."""
    hue = category_id * _GOLDEN_RATIO % 1.0
    # Five hues are far apart; the next five, between them, also differ in brightness.
    saturation, value = ((0.85, 1.0), (0.5, 1.0), (0.95, 0.75))[category_id // 5 % 3]
    red, green, blue = colorsys.hsv_to_rgb(hue, saturation, value)
    return round(red * 255), round(green * 255), round(blue * 255)


def draw_detections(
    image: Picture,
    boxes_xywh: npt.ArrayLike,
    labels: Sequence[str],
    scores: Sequence[float] | None = None,
    *,
    category_ids: Sequence[int] | None = None,
    styles: Sequence[LineStyle] | None = None,
    masks: Sequence[Mapping[str, Any] | None] | None = None,
    keypoints: Sequence[npt.ArrayLike | None] | npt.NDArray[np.floating[Any]] | None = None,
    skeletons: Sequence[Skeleton] | None = None,
    min_score: float = 0.0,
    scale: float = 1.0,
) -> Picture:
    """Draws boxes, each with a tag such as "raccoon: 0.87", and optionally masks and keypoints.

    Instances of one class have shades of its colour; overlapping boxes have different shades.

    Args:
        image: uint8 [H, W, 3], RGB; not changed.
        boxes_xywh: [N, 4], (x, y, width, height) in pixels of `image`, as in COCO; parts outside
            of the image are clipped.
        labels: N names; "": no tag.  Tags are placed beside their boxes if there is space; in a
            crowd, tags of weak detections that would cover stronger ones are dropped.
        scores: N values in 0..1, shown after the names; None for ground truth.
        category_ids: N ids that select the colours; None: one colour per name, in order of
            appearance.
        styles: N styles instead of the categories' colours.
        masks: N compressed RLEs of any scale of `image`; None: no mask.
        keypoints: N arrays [K, 3], (x, y, score or visibility) in pixels of `image`, or None; points with a
            score of 0 are not drawn.
        skeletons: N skeletons, whose `visible_edges` are drawn; None: points only.
        min_score: min score of detections to draw.
        scale: scale of the picture relative to `image`.  The sizes of lines and tags depend on the
            picture, tags have at least 11 pixels: use 3 or 4 for a small image.

    Returns:
        uint8 [round(H * scale), round(W * scale), 3], at least 1 pixel high and wide.

    Raises:
        ValueError: the image is not uint8 [H, W, 3], or the lengths differ.
    """
    boxes = np.asarray(boxes_xywh, np.float64).reshape(-1, 4) * scale
    columns: dict[str, Any] = {"category_ids": category_ids, "styles": styles, "masks": masks, "keypoints": keypoints}
    _check(image, len(boxes), labels=labels, scores=scores, skeletons=skeletons, **columns)
    height, width = (max(1, round(side * scale)) for side in image.shape[:2])
    picture = Image.fromarray(image).resize((width, height), Image.Resampling.LANCZOS)

    order = _drawing_order(len(boxes), scores, min_score)
    frames = [frame_of(boxes[index].tolist(), width, height) for index in order]
    if styles is None:
        colors = _category_colors(labels, category_ids)
        chosen = _instance_styles(frames, [colors[index] for index in order])
    else:
        chosen = [styles[index] for index in order]
    if masks is not None:
        for index, frame, style in zip(order, frames, chosen, strict=True):
            _draw_mask(picture, masks[index], style.color, _line_width(picture, frame))
    _draw_frames(picture, frames, chosen)
    if keypoints is not None:
        for index, frame, style in zip(order, frames, chosen, strict=True):
            points = np.reshape(np.asarray(() if keypoints[index] is None else keypoints[index], np.float64), (-1, 3))
            points = points * [scale, scale, 1.0]
            edges = visible_edges(points, () if skeletons is None else skeletons[index])
            _draw_keypoints(picture, points, edges, style.color, _line_width(picture, frame))
    texts = [
        labels[index] if scores is None or not labels[index] else f"{labels[index]}: {scores[index]:.2f}"
        for index in order
    ]
    # The best detection chooses the position of its tag first.
    draw_tags(picture, frames[::-1], [style.color for style in chosen][::-1], texts[::-1])
    return np.asarray(picture)


def contact_sheet(
    images: Sequence[Picture],
    *,
    columns: int = 4,
    cell: tuple[int, int] | None = None,
    captions: Sequence[str] | None = None,
    gap: int = 8,
) -> Picture:
    """Arranges pictures in rows, on white.

    Args:
        images: uint8 [H, W, 3] each, RGB, of any sizes.
        columns: pictures per row.
        cell: (height, width) in pixels; pictures are resized to fit, keeping their aspect
            ratio; None: no resizing.  Pictures of a row are aligned at the bottom.
        captions: one line below each picture; None: no captions.
        gap: pixels around and between pictures.

    Returns:
        uint8 [H, W, 3].

    Raises:
        ValueError: no images, an image that is not uint8 [H, W, 3], or not one caption per image.
    """
    if not images:
        raise ValueError("a contact sheet needs at least one image")
    for image in images:
        _check(image, len(images), captions=captions)
    pictures = [Image.fromarray(image) if cell is None else _fit(image, *cell) for image in images]
    width = cell[1] if cell else max(picture.width for picture in pictures)
    font = load_font(width)
    line = line_height(font) + 4 if captions else 0
    rows = [range(first, min(first + columns, len(images))) for first in range(0, len(images), columns)]
    heights = [max(pictures[index].height for index in row) + line + gap for row in rows]
    sheet = Image.new("RGB", (gap + len(rows[0]) * (width + gap), gap + sum(heights)), _PAPER)
    draw = ImageDraw.Draw(sheet)
    for row, bottom in zip(rows, np.cumsum(heights).tolist(), strict=True):
        for column, index in enumerate(row):
            picture, left = pictures[index], gap + column * (width + gap)
            sheet.paste(picture, (left + (width - picture.width) // 2, bottom - line - picture.height))
            if captions:
                draw.text((left + width / 2, bottom - line + 2), captions[index], _INK, font, anchor="ma")
    return np.asarray(sheet)


def eight_bit_rgb(image: Image.Image) -> Image.Image:
    """Converts an image to 8-bit RGB: drops transparency, and keeps the upper 8 of 16 bits per channel."""
    if image.mode.startswith("I"):
        return Image.fromarray((np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)).convert("RGB")
    # Through RGBA: Pillow warns about palettes with transparency in a direct conversion.
    return (image.convert("RGBA") if image.mode == "P" else image).convert("RGB")


def _check(image: Picture, count: int, **columns: Sequence[object] | None) -> None:
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise ValueError(f"an image is uint8 [H, W, 3], not {image.dtype} {list(image.shape)}")
    for name, values in columns.items():
        if values is not None and len(values) != count:
            raise ValueError(f"{len(values)} {name} for {count}")


def _category_colors(labels: Sequence[str], category_ids: Sequence[int] | None) -> list[Color]:
    """Returns the categories' colours; without ids, categories are numbered by their first label."""
    if category_ids is None:
        known: dict[str, int] = {}
        category_ids = [known.setdefault(label, len(known)) for label in labels]
    return [category_color(int(category_id)) for category_id in category_ids]


def _instance_styles(frames: Sequence[Rectangle], colors: Sequence[Color]) -> list[LineStyle]:
    """Returns unbroken lines in a shade of each box's colour, different from overlapping boxes of that colour.

    Args:
        frames: the boxes, the strongest last: it has the original colour.
        colors: colour of each box's category.
    """
    shades: list[int] = []
    boxes = list(zip(frames, colors, strict=True))[::-1]
    for frame, color in boxes:
        peers = [(shade, other) for shade, (other, own) in zip(shades, boxes, strict=False) if own == color]
        overlaps, uses = [0.0] * len(_SHADES), [0] * len(_SHADES)
        for shade, other in peers:
            overlaps[shade] += frame.overlap(other)
            uses[shade] += 1
        shades.append(min(range(len(_SHADES)), key=lambda shade: (overlaps[shade], uses[shade])))
    return [LineStyle(_shade(color, shade)) for shade, (_, color) in zip(shades, boxes, strict=True)][::-1]


def _shade(color: Color, number: int) -> Color:
    grey, share = _SHADES[number]
    red, green, blue = (round(value + (grey - value) * share) for value in color)
    return red, green, blue


def _drawing_order(count: int, scores: Sequence[float] | None, min_score: float) -> list[int]:
    """Returns the indices to draw, the lowest score first, so that better detections are on top."""
    if scores is None:
        return list(range(count))
    strength = np.asarray(scores, np.float64)
    return [int(index) for index in np.argsort(strength, kind="stable") if strength[index] >= min_score]


def _line_width(picture: Image.Image, frame: Rectangle) -> int:
    """Returns the line width of a box in pixels: depends on the picture's size, thinner for a small box."""
    sides = frame.right - frame.left, frame.bottom - frame.top
    return max(1, min(round(min(picture.size) / 200), round(min(sides) / 12)))


def _draw_frames(picture: Image.Image, frames: Sequence[Rectangle], styles: Sequence[LineStyle]) -> None:
    draw = ImageDraw.Draw(picture, "RGBA")
    for frame, (color, dash) in zip(frames, styles, strict=True):
        line = _line_width(picture, frame)
        corners = _ordered(frame.left, frame.top, frame.right - 1, frame.bottom - 1)
        # A dark edge keeps a bright frame visible on a bright background.
        draw.rectangle(_inflate(corners, 1), outline=(0, 0, 0, 110), width=line + 2)
        draw.rectangle(corners, fill=(*color, _FILL_OPACITY), outline=None if dash else (*color, 255), width=line)
        if dash:
            _draw_dashes(draw, corners, LineStyle(color, dash), line)


def _draw_mask(picture: Image.Image, rle: Mapping[str, Any] | None, color: Color, line: int) -> None:
    """Draws a mask of the unscaled image on a picture: filled, with an outline of `line` pixels."""
    if rle is None:
        return
    from pycocotools import mask

    x, y, width, height = mask.toBbox(rle).astype(int).tolist()
    if not width * height:
        return
    # Only the part with the mask, because photographs are large.
    part = Image.fromarray(np.ascontiguousarray(mask.decode(rle)[y : y + height, x : x + width]))
    scale = picture.width / rle["size"][1]
    left, top = round(x * scale), round(y * scale)
    right, bottom = max(left + 1, round((x + width) * scale)), max(top + 1, round((y + height) * scale))
    inside = np.asarray(part.resize((right - left, bottom - top), Image.Resampling.NEAREST)) > 0
    opacity = np.where(outline(inside, line), 255, np.where(inside, _MASK_OPACITY, 0))
    picture.paste(color, (left, top), Image.fromarray(opacity.astype(np.uint8)))


def outline(inside: npt.NDArray[np.bool_], width: int) -> npt.NDArray[np.bool_]:
    """Returns the pixels of a mask [H, W] within `width` pixels of its boundary, along rows and columns."""
    padded = np.pad(inside, width)
    rows, columns = slice(width, width + inside.shape[0]), slice(width, width + inside.shape[1])
    core = padded[: -2 * width, columns] & padded[2 * width :, columns]
    return inside & ~(core & padded[rows, : -2 * width] & padded[rows, 2 * width :])


def visible_edges(points: npt.ArrayLike, skeleton: Skeleton) -> list[Edge]:
    """Returns the edges of a skeleton (x0, y0, x1, y1) between points [K, 3] with a score (x, y, score) above 0."""
    shown = {number: (x, y) for number, (x, y, score) in enumerate(np.asarray(points).tolist(), 1) if score > 0}
    return [(*shown[first], *shown[last]) for first, last in skeleton if first in shown and last in shown]


def _draw_keypoints(
    picture: Image.Image, points: npt.NDArray[np.float64], edges: Sequence[Edge], color: Color, line: int
) -> None:
    """Draws edges, and above them dots with a dark outline at points [K, 3] (x, y, score)."""
    radius = max(2.0, min(picture.size) / 120)
    draw = ImageDraw.Draw(picture)
    for edge in edges:
        # Pillow steps along lines of one pixel, also far outside of the picture.
        draw.line(edge, fill=color, width=max(2, line))
    for x, y, score in points.tolist():
        if score > 0:
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=color, outline=(0, 0, 0))


def _draw_dashes(
    draw: ImageDraw.ImageDraw, corners: tuple[float, float, float, float], style: LineStyle, line: int
) -> None:
    """Draws a dashed line inside the corners; every side starts with a stroke."""
    left, top, right, bottom = corners
    inner_left, inner_top = max(left, right - line + 1), max(top, bottom - line + 1)
    for start, end in _strokes(left, right, style.dash, line):
        for y in (top, inner_top):
            draw.rectangle(_ordered(start, y, end, min(y + line - 1, bottom)), fill=style.color)
    for start, end in _strokes(top, bottom, style.dash, line):
        for x in (left, inner_left):
            draw.rectangle(_ordered(x, start, min(x + line - 1, right), end), fill=style.color)


def _ordered(left: float, top: float, right: float, bottom: float) -> tuple[float, float, float, float]:
    """Orders corners for Pillow: for a width of one pixel, rounding may have swapped left and right."""
    return left, top, max(left, right), max(top, bottom)


def _strokes(first: float, last: float, dash: Sequence[float], line: int) -> Iterator[tuple[float, float]]:
    """Yields the first and last pixel of each stroke between two pixels."""
    for length, drawn in zip(itertools.cycle(dash), itertools.cycle((True, False)), strict=False):
        if first > last:
            return
        if drawn:
            yield first, min(first + length * line - 1, last)
        first += length * line


def _inflate(corners: tuple[float, float, float, float], by: float) -> tuple[float, float, float, float]:
    left, top, right, bottom = corners
    return left - by, top - by, right + by, bottom + by


def _fit(image: Picture, height: int, width: int) -> Image.Image:
    ratio = min(height / image.shape[0], width / image.shape[1])
    size = max(1, round(image.shape[1] * ratio)), max(1, round(image.shape[0] * ratio))
    return Image.fromarray(image).resize(size, Image.Resampling.LANCZOS)
