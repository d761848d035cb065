"""OKS sigmas of each category: the spread of a keypoint, as a fraction of the square root of the annotation's area."""

import functools
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from detection.coco.params import Params
from detection.datasets.annotations.entries import Entry
from schemas.errors import ConfigError
from schemas.quoting import quoted

# Keypoints of a person in COCO; divided as in COCOeval, to get the same bits.
_TENTHS = np.array([0.26, *np.repeat([0.25, 0.35, 0.79, 0.72, 0.62, 1.07, 0.87, 0.89], 2)])
OKS_SIGMAS: tuple[float, ...] = tuple((_TENTHS / 10.0).tolist())
_OWN_SIGMA = 0.05  # for keypoints that COCO does not have, as in the OD API


def fit_keypoints(params: Params, categories: Sequence[Entry]) -> Params:
    """Fits the params to the keypoints that the categories name; fitted params do not change.

    A list of `oks_sigmas` is for all categories with as many keypoints; a mapping is by category name, in order or by
    keypoint name.  Other categories have the sigmas of COCO's 17 keypoints, or 0.05 for each of another number.  A
    category that names none has those of the largest number.

    Raises:
        ConfigError: sigmas of no category, or of other keypoints; different sigmas without `use_cats`.
    """
    if params.iou_type != "keypoints" or params.sigmas_of:
        return params
    given = params.oks_sigmas
    by_name, listed = (given, ()) if isinstance(given, Mapping) else ({}, tuple(given or ()))
    numbers = {len(_keypoints(one)) for one in categories} - {0}
    unknown = by_name.keys() - {_label(one) for one in categories}
    if unknown:
        raise ConfigError(f"oks_sigmas: no category is named {quoted(_listed(unknown))}. Correct the names.")
    if listed and numbers and len(listed) not in numbers:
        raise ConfigError(f"oks_sigmas: {len(listed)} numbers, but categories have {_listed(numbers)} keypoints.")
    fitted = {}
    for category in categories:
        own = by_name.get(_label(category))
        if own or _keypoints(category):
            fits = len(listed) == len(_keypoints(category))
            fitted[category["id"]] = _sigmas(category, own or (listed if fits else None))
    if not params.use_cats and len({*fitted.values()}) > 1:
        raise ConfigError(
            f"oks_sigmas: use_cats=False needs one list, but categories have {_listed(numbers)} keypoints."
        )
    others = max(fitted.values(), key=len, default=listed or OKS_SIGMAS)
    return replace(params, sigmas_of={one["id"]: fitted.get(one["id"], others) for one in categories})


def _label(category: Entry) -> str:
    return str(category.get("name", category["id"]))


def _keypoints(category: Entry) -> Sequence[str]:
    names = category.get("keypoints")
    return [*map(str, names)] if isinstance(names, list | tuple) else ()


def _sigmas(category: Entry, given: Sequence[float] | Mapping[str, float] | None) -> tuple[float, ...]:
    """Returns the sigmas of a category; None: the default for its keypoints."""
    names, label = _keypoints(category), quoted(_label(category))
    if given is None and len(names) == len(OKS_SIGMAS):
        return OKS_SIGMAS
    if given is None:
        _warn_once(f"oks_sigmas of {label} is not set: AP is that of {_OWN_SIGMA} for each of {len(names)} keypoints")
        return (_OWN_SIGMA,) * len(names)
    if isinstance(given, Mapping):
        if given.keys() != {*names}:
            raise ConfigError(f"oks_sigmas of {label}: specify its keypoints, {quoted(_listed(names))}, no others.")
        given = [given[name] for name in names]
    if names and len(given) != len(names):
        raise ConfigError(f"oks_sigmas of {label}: {len(given)} numbers, but it has {len(names)} keypoints.")
    return tuple(given)


def _listed(values: Iterable[object]) -> str:
    return ", ".join(sorted(map(str, values)))


@functools.cache
def _warn_once(message: str) -> None:
    logging.getLogger("cocoflow.evaluate").warning("keypoints: %s", message)
