"""Pages with galleries of pictures: as many of these as the file has bytes for."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from detection.images.drawing import Rectangle, text_color
from detection.reports.box_styles import STATUSES
from detection.reports.evaluation.panels import Figure, Region
from detection.reports.evaluation.pictures import Encoded, PictureSource, Wanted, encode_pictures
from detection.reports.html.render import render_page
from detection.storage.atomic import write_text

MOST_BYTES = 5_000_000

_SLACK = 20_000  # bytes
_NONE = "This page has no pictures: there were no image files."

Galleries = Mapping[str, Sequence[Figure]]


class Stored(NamedTuple):
    """A picture as the page holds it, and its place, pixels of the image."""

    webp: bytes
    region: Region


class Shown(NamedTuple):
    """What the page has of the galleries.

    galleries: name -> figures that are shown.
    pictures: by the figures' keys.
    note: a sentence about those that are not; "" where all are.
    """

    galleries: Galleries
    pictures: Mapping[str, Stored]
    note: str


def write_illustrated_page(
    path: str | Path,
    template: str,
    *,
    scripts: Sequence[str],
    galleries: Galleries,
    source: PictureSource | None,
    content: Callable[[Shown], Mapping[str, Any]],
) -> None:
    """Writes a page, whole or not at all.

    Pictures, the most interesting first, are left out where the file would be greater
    than MOST_BYTES: the first of each gallery come before the second ones, and so on.

    Args:
        path: of the HTML file.
        template: of this package; it gets `shown`, `statuses` and the content.
        scripts: see `render_page`.
        galleries: name -> figures, the most interesting first.
        source: of the images; None: there are none to be had.
        content: what the template shows, from the figures that it can show.

    Raises:
        DataError: the file cannot be written.
    """
    # Without pictures first: what the rest takes is what they cannot have.
    shown = Shown({name: [] for name in galleries}, {}, _NONE)
    page = _render(template, scripts, shown, content)
    if source:
        wanted = list(_by_interest(galleries.values()))
        encoded = _encode(wanted, source, MOST_BYTES - _SLACK - len(page.encode()))
        kept = {id(wanted[position]) for position in encoded.shown}
        figures = {name: [one for one in gallery if id(one) in kept] for name, gallery in galleries.items()}
        page = _render(template, scripts, Shown(figures, _stored(wanted, encoded), _note(encoded)), content)
    write_text(path, page)


def _render(template: str, scripts: Sequence[str], shown: Shown, content: Callable[[Shown], Mapping[str, Any]]) -> str:
    return render_page(
        __package__,
        template,
        scripts=scripts,
        filters={"pixels": _pixels, "rectangle": _rectangle, "text_color": text_color, "dashes": _dashes},
        shown=shown,
        statuses=STATUSES,
        **content(shown),
    )


def _by_interest(galleries: Iterable[Sequence[Figure]]) -> Iterator[Figure]:
    return (figure for rank in zip_longest(*galleries) for figure in rank if figure is not None)


def _encode(figures: Sequence[Figure], source: PictureSource, budget: int) -> Encoded:
    wanted = [Wanted(figure.key, figure.image_id, figure.region, figure.markup) for figure in figures]
    return encode_pictures(wanted, source, budget=budget)


def _stored(figures: Iterable[Figure], encoded: Encoded) -> dict[str, Stored]:
    """Whole images fill what their figures see; parts lie where they were cut out."""
    pictures = encoded.pictures
    return {
        figure.key: Stored(pictures[figure.key].webp, pictures[figure.key].region if figure.region else figure.view)
        for figure in figures
        if figure.key in pictures
    }


def _note(encoded: Encoded) -> str:
    notes = []
    if encoded.unreadable:
        notes.append(f"{encoded.unreadable:,} pictures are not shown: their images could not be read.")
    if encoded.left_out:
        notes.append(f"{encoded.left_out:,} pictures, the least interesting, were left out to keep this file small.")
    return " ".join(notes)


def _pixels(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"


def _rectangle(rectangle: Rectangle) -> Markup:
    left, top, right, bottom = rectangle
    values = {"x": left, "y": top, "width": right - left, "height": bottom - top}
    return Markup(" ".join(f'{name}="{_pixels(value)}"' for name, value in values.items()))


def _dashes(dash: Sequence[float]) -> str:
    """In pixels: lines are two wide."""
    return " ".join(f"{2 * length:g}" for length in dash)
