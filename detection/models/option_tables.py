"""Keeps the tables of presets and options in the docs of the detectors' families up to date.

A page marks the place of a table by a comment line, `<!-- table: NAME -->`; the lines of a table
that follow it are replaced.  All else on the page is written by hand.

python -m detection.models.option_tables docs/efficientdet.md docs/mask_rcnn.md
"""

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from detection.models.efficientdet.config import EFFICIENTDETS, EfficientDetConfig
from detection.models.faster_rcnn.config import FASTER_RCNNS, FasterRcnnConfig
from detection.models.heads.postprocess import BoxPostprocess, MaskPostprocess
from detection.storage.atomic import write_text
from detection.storage.reading import read_text
from schemas.config.automl_keys import HPARAMS
from schemas.config.config_table import rows, table
from schemas.config.section import Section
from schemas.errors import CocoflowError

_MARK = re.compile(r"^<!-- table: (.+) -->\n(?:\|.*\n)*", re.MULTILINE)


def with_tables(text: str) -> str:
    """Returns the text of a page with its marked tables as they are now.

    Raises:
        CocoflowError: a mark names an unknown table.
    """

    def made(match: re.Match[str]) -> str:
        name = match[1]
        if name not in _TABLES:
            raise CocoflowError(f"no table {name!r}. Known tables are {', '.join(_TABLES)}.")
        return f"<!-- table: {name} -->\n{_TABLES[name]()}"

    return _MARK.sub(made, text)


def _options(section: type[Section]) -> str:
    return table(row for row in rows(section, "model.overrides.") if ".postprocess." not in row.key)


def _efficientdets() -> str:
    return _markdown(
        ["model.name", "backbone", "input", "levels", "FPN filters x cells", "fusion", "head layers", "anchor scale"],
        (
            [
                f"`{name}`",
                preset.backbone,
                " x ".join(map(str, preset.image_size)),
                f"{preset.min_level} to {preset.max_level}",
                f"{preset.fpn_filters} x {preset.fpn_cells}",
                preset.fpn_fusion,
                str(preset.head_layers),
                f"{preset.anchor_scale:g}",
            ]
            for name, preset in EFFICIENTDETS.items()
        ),
    )


def _faster_rcnns() -> str:
    return _markdown(
        ["model.name", "backbone", "input", "levels", "FPN filters", "masks", "frozen stages"],
        (
            [
                f"`{name}`",
                preset.backbone,
                " x ".join(map(str, preset.image_size)),
                f"{preset.min_level} to {preset.max_level}",
                str(preset.fpn_filters),
                f"{2 * preset.mask_roi_size} x {2 * preset.mask_roi_size}" if preset.include_mask else "none",
                str(preset.frozen_stages),
            ]
            for name, preset in FASTER_RCNNS.items()
        ),
    )


def _hparams() -> str:
    return _markdown(
        ["hparam", "default", "key here", "meaning"],
        (
            [
                f"`{name}`",
                "none" if rule.default is None else f"`{rule.default}`",
                ", ".join(f"`{key}`" for key in rule.keys.split(", ") if key),
                rule.meaning,
            ]
            for name, rule in HPARAMS.items()
        ),
    )


def _markdown(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    texts = [header, ["---"] * len(header), *lines]
    return "".join(f"| {' | '.join(cells)} |\n" if cells[0] != "---" else f"|{'|'.join(cells)}|\n" for cells in texts)


_TABLES: Mapping[str, Callable[[], str]] = {
    "EfficientDet presets": _efficientdets,
    "EfficientDet options": lambda: _options(EfficientDetConfig),
    "box postprocess": lambda: table(rows(BoxPostprocess, "model.postprocess.")),
    "google/automl hparams": _hparams,
    "Faster R-CNN presets": _faster_rcnns,
    "Faster R-CNN options": lambda: _options(FasterRcnnConfig),
    "mask postprocess": lambda: table(rows(MaskPostprocess, "model.postprocess.")),
}


if __name__ == "__main__":
    for page in map(Path, sys.argv[1:]):
        write_text(page, with_tables(read_text(page)))
