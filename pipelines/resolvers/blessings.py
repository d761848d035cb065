"""Blessed models among a pipeline's artifacts."""

from collections.abc import Iterable

from tfx import types


def blessings_by_model(blessings: Iterable[types.Artifact]) -> dict[int, types.Artifact]:
    """The blessings that say yes, by the id of their model.

    Args:
        blessings: their custom properties are `blessed` (1 or 0) and `current_model_id`,
            as TFX's Evaluator sets them.
    """
    return {
        int(blessing.get_int_custom_property("current_model_id")): blessing
        for blessing in blessings
        if blessing.get_int_custom_property("blessed") == 1
    }


def newest_blessed(models: Iterable[types.Artifact], blessings: Iterable[types.Artifact]) -> types.Artifact | None:
    """The newest of the models that a blessing says yes to; ids rise in the order of creation."""
    blessed = blessings_by_model(blessings)
    return max((model for model in models if model.id in blessed), key=lambda model: int(model.id), default=None)
