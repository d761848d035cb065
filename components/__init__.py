"""TFX components: one folder each, `component.py` is the contract, `executor.py` the work."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from components.coco_evaluator.component import CocoEvaluator
    from components.coco_example_gen.component import CocoExampleGen
    from components.detection_trainer.component import DetectionTrainer
    from components.saved_model_pusher.component import SavedModelPusher

__all__ = ["CocoEvaluator", "CocoExampleGen", "DetectionTrainer", "SavedModelPusher"]

_MODULES = {
    "CocoEvaluator": "coco_evaluator",
    "CocoExampleGen": "coco_example_gen",
    "DetectionTrainer": "detection_trainer",
    "SavedModelPusher": "saved_model_pusher",
}


def __getattr__(name: str) -> Any:
    """Imports a component when it is first used: TFX takes 20 seconds, which most commands do without."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}.component"), name)
