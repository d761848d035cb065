"""What every backbone is, and what describes a kind of them."""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import keras


class Backbone(keras.layers.Layer):
    """Maps images [B, H, W, 3] to a list of feature maps, by `call(images, training=False, seed=None)`.

    A pyramid returns levels 1..L, level l at stride 2^l, sizes rounded up.

    Args:
        recompute: recompute each block in the backward pass, to save memory.
        name: layer name.
        dtype: Keras dtype policy.

    Attributes:
        stacked: no pyramid: all maps are of level 2, each a refinement of the one before.
        level_filters: channels of the maps.
    """

    stacked: ClassVar[bool] = False
    level_filters: list[int]

    def __init__(self, *, recompute: bool, name: str | None, dtype: Any):
        super().__init__(name=name, dtype=dtype)
        self._recompute = recompute

    @property
    def stages(self) -> list[list[keras.layers.Layer]]:
        """Layers up to the first map, and between one and the next."""
        raise NotImplementedError


class BackboneKind(NamedTuple):
    """Networks of one class.

    make: the class; it takes `spec`, `activation` (None: the network's own), `batch_norm`, `recompute`, `name` and
        `dtype`.
    specs: specifications by name.
    arguments: options of `BackboneOptions`, and arguments of `make_backbone`, that it takes, too.
    layouts: values of the option `layout`.
    """

    make: type[Any]
    specs: Mapping[str, Any]
    arguments: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ("standard",)
