"""What initialisation did, for people."""

from typing import Any, NamedTuple

from detection.models.backbones.imagenet import ImagenetReport
from detection.training.initialization.warm_start import WarmStart


class InitReport(NamedTuple):
    """What initialisation did.

    backbone: what came from keras.applications.
    warm_start: what came from an earlier training.
    fresh: paths of the variables that neither set: they have the values of the seed.
    """

    backbone: ImagenetReport | None
    warm_start: WarmStart | None
    fresh: tuple[str, ...]

    def __str__(self) -> str:
        parts = [str(self.backbone)] if self.backbone else []
        if self.warm_start:
            parts.append(_warm_start_words(self.warm_start))
        return "; ".join([*parts, f"{len(self.fresh)} variables fresh"])

    def as_json(self) -> dict[str, Any]:
        """The full lists, as `schemas.artifacts.INIT_REPORT_JSON` holds them."""
        whole: dict[str, Any] = {}
        if self.backbone:
            whole["backbone_weights"] = self.backbone._asdict()
        if self.warm_start:
            whole["warm_start"] = _warm_start_lists(self.warm_start)
        return whole | {"fresh": self.fresh}


def _warm_start_words(done: WarmStart) -> str:
    plan = done.plan
    counts = {
        "in part": sum(_is_partial(positions) for positions in plan.load.values()),
        "skipped": len(plan.skipped),
        "of another shape": len(plan.mismatched),
        "not there": len(plan.missing),
        "unused there": len(plan.unused),
    }
    told = "".join(f", {count} {what}" for what, count in counts.items() if count)
    averages = f" ({done.averages} averages)" if done.averages else ""
    assumed = "; its class outputs taken for COCO's ids" if done.coco_ids else ""
    fresh = f"; class outputs fresh for {', '.join(done.new_categories)}" if done.new_categories else ""
    return f"warm start from {done.source}: {len(plan.load)} variables loaded{averages}{told}{assumed}{fresh}"


def _warm_start_lists(done: WarmStart) -> dict[str, Any]:
    plan = done.plan
    return {
        "source": done.source,
        "averages": done.averages,
        "class_outputs_taken_for_coco_ids": done.coco_ids,
        "loaded": [path for path, positions in plan.load.items() if not _is_partial(positions)],
        "loaded_in_part": [path for path, positions in plan.load.items() if _is_partial(positions)],
        "new_categories": done.new_categories,
        "skipped": plan.skipped,
        "mismatched": {path: {"needed": here, "there": there} for path, (here, there) in plan.mismatched.items()},
        "not_there": plan.missing,
        "unused_there": plan.unused,
    }


def _is_partial(positions: Any) -> bool:
    return positions is not None and bool((positions < 0).any())
