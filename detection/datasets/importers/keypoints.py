"""Keypoints of foreign records."""

from typing import Any, NamedTuple

from detection.datasets.importers import keys
from detection.datasets.importers.decimals import is_drawable, pixels_of_share
from detection.datasets.importers.parsing import Record, as_text


class Keypoints(NamedTuple):
    """An object's points.

    shares: K times (x, y), normalised.
    visibility: K times COCO's 0 (not labelled), 1 (hidden) or 2.
    names: K names; () where the record has none.
    """

    shares: list[tuple[float, float]]
    visibility: list[int]
    names: tuple[str, ...]

    @property
    def labelled(self) -> int:
        """How many points are labelled: COCO's `num_keypoints`."""
        return sum(value > 0 for value in self.visibility)


def object_keypoints(record: Record, count: int) -> list[Keypoints] | None:
    """The keypoints of a record's objects.

    Args:
        record: the record.
        count: its objects.

    Returns:
        One entry an object, or [] where the record has no keypoints; None where they
        cannot be shared out among the objects.
    """
    xs, ys = record.get(keys.KEYPOINT_X, []), record.get(keys.KEYPOINT_Y, [])
    if not xs and not ys:
        return []
    sizes = _sizes(record, len(xs), count)
    if len(xs) != len(ys) or sizes is None:
        return None
    visibility = record.get(keys.KEYPOINT_VISIBILITY) or list(map(_assumed_visibility, xs, ys))
    names = list(map(as_text, record.get(keys.KEYPOINT_TEXT, [])))
    if len(visibility) != len(xs):
        return None
    found, start = [], 0
    for size in sizes:
        rows = slice(start, start + size)
        found.append(
            Keypoints(
                list(zip(xs[rows], ys[rows], strict=True)),
                list(map(int, visibility[rows])),
                tuple(names[rows]) if len(names) == len(xs) else (),
            )
        )
        start += size
    return found


def coco_keypoints(points: Keypoints, *, height: int, width: int) -> list[Any]:
    """COCO's list of K times x, y (pixels), visibility; 0, 0, 0 for what is not labelled."""
    values: list[Any] = []
    for (x, y), visible in zip(points.shares, points.visibility, strict=True):
        if visible <= 0 or not is_drawable(x, y):
            values += [0, 0, 0]
        else:
            values += [_plain(x, width), _plain(y, height), visible]
    return values


def _sizes(record: Record, total: int, count: int) -> list[int] | None:
    if count and total % count == 0:
        return [total // count] * count
    # Writers that give objects unequally many points tell how many; others count the labelled ones here.
    sizes = [int(size) for size in record.get(keys.KEYPOINT_NUM, [])]
    return sizes if len(sizes) == count and sum(sizes) == total and min(sizes, default=0) >= 0 else None


def _assumed_visibility(x: float, y: float) -> int:
    return 2 if is_drawable(x, y) and (x, y) != (0.0, 0.0) else 0


def _plain(share: float, size: int) -> float:
    pixels, places = pixels_of_share(share, size)
    return int(pixels) if places == 0 else pixels
