"""Makes the page on EfficientDet's options, and on those of google/automl.

python -m detection.models.efficientdet.config_page > docs/efficientdet.md
"""

from collections.abc import Iterable, Sequence

from detection.models.efficientdet.config import EFFICIENTDETS, EfficientDetConfig
from detection.models.heads.postprocess import BoxPostprocess
from schemas.config.automl_keys import HPARAMS
from schemas.config.config_table import rows, table

_HEAD = """# EfficientDet

`model.name` chooses a detector of google/automl's family, or `efficientdet-nano`, which is for CPUs and tests. All
have the original's function and variable names.

"""
_OPTIONS = """
## Options of the network

`model.overrides` takes these keys, as `--set 'model.overrides={fpn_graph: qufpn}'`. Defaults are D0's; the table above
tells where others differ. `model.image_size` and `model.resize` set the input, see
[training_input.md](training_input.md#input-size). [losses.md](losses.md) describes the options of targets and losses.

"""
_POSTPROCESS = """
`model.postprocess` takes the options from outputs to detections:

"""
_CHECKPOINTING = """
`gradient_checkpointing` computes the inner values of backbone blocks, BiFPN cells and head layers again when their
gradients need them. Gradients and batch-norm statistics stay the same. A step of D0 with 8 images of 256 x 256 needs
0.70 GB instead of 1.30 GB beside weights and graph, and 18 % more time (float32 on a CPU).
"""
_HPARAMS = """
## Keys of google/automl's hparams

`schemas.config.automl_hparams` reads hparams as YAML or as `key=value,key=value`:

```python
from schemas.config.automl_hparams import parse_hparams, tree_from_hparams
from schemas.config.config_io import parse_config, to_yaml

hparams = parse_hparams("name=efficientdet-d0,image_size=640x384,fpn_weight_method=sum,num_epochs=50")
print(to_yaml(parse_config(tree_from_hparams(hparams, batch_size=16))))
```

`batch_size` stands for the original's flag. Epochs stay epochs, of as many images as there are training records:
`num_examples_per_epoch` is not needed. Hparams that are not given are left out. A text `640x384` is width x height
there; lists, here and there, are [height, width]. An unknown key is an error, and so is a value that is refused below.
Other keys without a key here need none: any value is accepted.

"""


def page() -> str:
    """The page as Markdown."""
    options = [row for row in rows(EfficientDetConfig, "model.overrides.") if ".postprocess." not in row.key]
    presets = _markdown(
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
    hparams = _markdown(
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
    postprocess = table(rows(BoxPostprocess, "model.postprocess."))
    parts = (_HEAD, presets, _OPTIONS, table(options), _CHECKPOINTING, _POSTPROCESS, postprocess, _HPARAMS, hparams)
    return "".join(parts)


def _markdown(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    texts = [header, ["---"] * len(header), *lines]
    return "".join(f"| {' | '.join(cells)} |\n" if cells[0] != "---" else f"|{'|'.join(cells)}|\n" for cells in texts)


if __name__ == "__main__":
    print(page(), end="")
