"""Configurations, environments and annotation files that nobody meant, generated from a seed."""

import copy
import json
import random
from pathlib import Path
from typing import Any

import yaml

from schemas.config.config import Config
from schemas.config.config_io import _known_keys
from tests.components.coco_example_gen.mutations import base_tree

_VARIABLES = (
    *("TF_CONFIG", "CLUSTER_SPEC", "GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CONFIG", "COCOFLOW_CACHE", "TMPDIR"),
    *("CUDA_VISIBLE_DEVICES", "HTTPS_PROXY", "KUBEFLOW_TOKEN", "GOOGLE_CLOUD_PROJECT", "COLUMNS", "NO_COLOR", "TERM"),
    *("OMP_NUM_THREADS", "TZ", "LC_ALL", "HOME", "XDG_CACHE_HOME"),
)


_SCALARS: tuple[tuple[Any, ...], ...] = (
    (0, -1, 1, 2**31, 2**63, 10**30, -(10**12), 10_000),
    (0.0, -0.5, 1e-300, 1e300, float("nan"), float("inf"), 0.1, 1e-9),
    ("", " ", "x", "~", "/", "..", "\x1b[31m", "a\0b", "é", "\ud800", "1e5", "none", "*", "[", "{}"),
    (True, False, None),
    ("x" * 100, "x" * 10_000),
    ("${0}", "{SPAN}", "gs://", "gs://bucket", "http://127.0.0.1:9/x", "file:///x"),
    ("auto", "int8", "sgd", "train", "eval", "AP", "segm/AP", "efficientdet-nano", "coco"),
)
_TEXTS = ("x", "/nowhere", "gs://bucket/x", "a b", "é", "(", "segm/AP", "mask-rcnn-nano", "none")


def _odd_value(rng: random.Random, depth: int = 0) -> Any:
    """A value of any JSON type: numbers at the limits, texts with control characters, nested lists and objects."""
    kind = rng.randrange(len(_SCALARS) + (2 if depth < 3 else 0))
    if kind < len(_SCALARS):
        return rng.choice(_SCALARS[kind])
    values = [_odd_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return values if kind == len(_SCALARS) else {str(_odd_value(rng, 3)): value for value in values}


def _plausible_value(rng: random.Random, key: str) -> Any:
    """A value of the type of the default, so that more than the types is checked."""
    default: Any = Config()
    for name in key.split("."):
        default = getattr(default, name)
    if isinstance(default, bool):
        return not default
    if isinstance(default, int):
        return rng.choice((0, 1, 2, 7, 63, 1000, 8192, 100_000, 2**40))
    if isinstance(default, float):
        return rng.choice((0.0, 1e-12, 0.3, 0.999, 1.0, 7.5, 1e6, 1e300))
    if isinstance(default, str):
        return rng.choice(
            (default, "x", "/nowhere", "gs://bucket/x", "a b", "é", "(", "segm/AP", "mask-rcnn-nano", "none")
        )
    if isinstance(default, list | tuple):
        return [rng.choice(("x", "(", ".*", 3, 0.5, ["a", "b"])) for _ in range(rng.randrange(3))]
    return rng.choice((3, 0.25, "x", ["x"], {"x": 1}, "/nowhere", 512, "adam"))


def configuration(seed: int) -> str:
    """A YAML of known keys with odd values; some are cut off or have a key twice."""
    rng = random.Random(seed)
    known = list(_known_keys(Config))
    tree: dict[str, Any] = {}
    for key in rng.sample(known, rng.choice((1, 1, 1, 2, 3))):
        *sections, leaf = key.split(".")
        inner = tree
        for section in sections:
            inner = inner.setdefault(section, {}) if isinstance(inner.get(section, {}), dict) else {}
        try:
            inner[leaf] = _odd_value(rng) if rng.random() < 0.15 else _plausible_value(rng, key)
        except AttributeError:  # the section is absent
            inner[leaf] = _odd_value(rng)
    text = yaml.safe_dump(tree, allow_unicode=rng.random() < 0.5)
    action = rng.randrange(20)
    if action == 0:
        return text[: rng.randrange(len(text))]
    if action == 1:
        return text + text
    return text


def environment(seed: int, folder: Path) -> dict[str, str]:
    """Values of variables that a command reads."""
    rng = random.Random(seed)

    def value() -> str:
        kind = rng.randrange(6)
        if kind == 0:
            return rng.choice(
                ("", " ", "0", "-1", "x", "/nowhere/at/all", "/dev/null", str(folder), "[]", "{}", "null")
            )
        if kind == 1:
            return "[" * rng.choice((1, 10, 100_000))
        if kind == 2:
            return '{"cluster":' * rng.choice((1, 50, 20_000))
        if kind == 3:
            cluster = {rng.choice(("worker", "chief", "ps", "x")): _odd_value(rng) for _ in range(2)}
            return json.dumps({"cluster": cluster, "task": _odd_value(rng)})
        if kind == 4:
            return json.dumps(_odd_value(rng))
        return "é\x1b[31m" * rng.choice((1, 1000))

    return {name: value().replace("\0", "") for name in rng.sample(_VARIABLES, rng.randint(1, 3))}


def annotations(seed: int) -> bytes:
    """A COCO file with odd values anywhere, or whose text is cut or changed."""
    rng = random.Random(seed)
    tree = copy.deepcopy(base_tree())
    for _ in range(rng.randint(1, 4)):
        inner: Any = tree
        while True:
            if isinstance(inner, dict) and inner:
                key: Any = rng.choice(list(inner))
            elif isinstance(inner, list) and inner:
                key = rng.randrange(len(inner))
            else:
                break
            if not isinstance(inner[key], dict | list) or not inner[key] or rng.random() < 0.15:
                inner[key] = _odd_value(rng)
                break
            inner = inner[key]
    content = json.dumps(tree).encode()
    action = rng.randrange(6)
    if action == 0:
        return content[: rng.randrange(len(content))]
    if action == 1:
        at = rng.randrange(len(content))
        return content[:at] + bytes(rng.randrange(256) for _ in range(3)) + content[at + 3 :]
    return content
