"""Runs the commands of README and docs as they stand, each page in a folder with what its commands name.

    python -m tests.documented_commands [PAGE ...] [--limit SECONDS]

Half an hour to an hour for all pages: not part of the tests.  Prints a line per command: done, refused (in the
clouds, and without the original's checkpoints), or still training after the limit.  Ends with exit code 1 if one
failed.  `make`, `pip` and `uv` are left to a fresh machine; blocks of Python to tests/test_doc_python.py.
"""

import argparse
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from detection.datasets.demo_data import make_demo_data
from detection.models.registry import detector_from_config
from detection.weights.imported_model import ImportedModel, write_model
from schemas.config.config_io import load_config
from tests.detection.mask_keypoint_data import write_data
from tests.test_command_lines import MINE, PAGES, SHELL, documented_lines

SHARED = Path(__file__).resolve().parents[2] / "shared" / "oracles"
BIN = Path(sys.executable).parent
VERSION = 1795406907  # of the pages
QUICK = (
    "--config demo --data my_coco --set train.steps=20 --set train.validation.every=null "
    "--set model.resize.mode=stretch"
)
CHECKPOINTS = r"mask_rcnn|efficientdet_d0_coco17|training|models/(r50|fpn|zoo|retinanet|od)\b"
# Commands that cannot be run to their end here, and the beginning of what they say.
REFUSALS = {
    r"gs://|VERSION|/shared/|10\.0\.0\.1|my-bucket|mine\.yaml": r"credentials|no such|permission|not found|bucket",
    r"submit|schedule": r"credentials|not installed|HOST|no connection|PROJECT",
    r"train\.tpu=local": r"TPU",
    CHECKPOINTS: r"no such file|no weights|unknown",
    r"eval\.pbtxt": r"eval\.pbtxt",
    r"train/labels\.json": r"train/labels\.json|--data|no data set",
    r"check-data --data runs/bad": r"",  # finds issues: exit code 1
    r"rollback": r"nothing to roll back to",  # both versions are copies of one
    r"backbone_weights=imagenet": r"could not be downloaded",
}
_TRAINING = re.compile(r"step \d|compiling the training step|Trainer")


class Outcome(NamedTuple):
    """What came of a command: done, refused, running or FAILED, and its last line of text."""

    state: str
    text: str


def prepare(folder: Path) -> Path:
    """Makes the inputs that the pages name, once; returns the folder."""
    make_demo_data(folder / "my_coco", train_images=40, eval_images=8)
    make_demo_data(folder / "my_photos", train_images=24, eval_images=4)
    shutil.copytree(folder / "my_photos" / "val", folder / "my_photos" / "images")
    shutil.copytree(folder / "my_photos" / "val", folder / "photos")
    Image.open(next((folder / "photos").iterdir())).convert("RGB").save(folder / "photo.jpg")
    for split in ("train", "val"):
        write_data(folder / "keypoints" / "my_coco", 12, split=split)
    shutil.make_archive(str(folder / "my_coco"), "zip", folder, "my_coco")
    (folder / "mine.yaml").write_text(MINE)
    (folder / "hparams.yaml").write_text("name: efficientdet-d0\n")
    (folder / "params.yaml").write_text("total_steps: 22500\n")
    for day in ("incoming/2026-11-20", "spans/2026-11-20", "runs/bad", "runs/demo-data"):
        shutil.copytree(folder / "my_coco", folder / day)
    next((folder / "runs" / "bad" / "train").iterdir()).write_bytes(b"no image")
    shell("cocoflow to-examples --data my_coco --output runs/ex", folder, limit=600)
    shutil.copy(next((folder / "runs/ex/Split-eval").iterdir()), folder / "coco_val.record-00000-of-00001")
    if SHARED.is_dir():
        config = SHARED / "od_api" / "zoo_configs" / "ssd_resnet50_v1_fpn_640x640_coco17_tpu-8.config"
        shutil.copy(config, folder / "pipeline.config")
        shutil.copytree(SHARED / "efficientdet_d0" / "name_based", folder / "checkpoints" / "efficientdet-d0")
        make = runpy.run_path(str(SHARED / "od_api" / "make_checkpoint.py"))["main"]
        make("ssd_resnet50_v1_fpn", str(folder / "checkpoints" / "ssd_resnet50_v1_fpn_640x640_coco17_tpu-8"))
    _published(folder)
    shell(f"cocoflow train {QUICK} --output out", folder, limit=600)
    shutil.copy(folder / "my_coco/annotations/instances_val.json", folder)
    found = "--ground-truth instances_val.json --output old.json"
    shell(f"cocoflow predict --model out --images my_coco/val {found}", folder, limit=600)
    for name in ("new.json", "detections.json"):
        shutil.copy(folder / "old.json", folder / name)
    quick = f"{QUICK} --set evaluate.thresholds={{absolute:\\ {{AP:\\ 0.0}}}}"
    for root in ("demo", "phone"):
        shell(f"cocoflow run {quick} --set push.mediapipe=int8 --set run.root=runs/{root}", folder, limit=600)
    [version] = (folder / "runs" / "demo" / "serving").iterdir()
    for number in (VERSION - 1, VERSION):
        shutil.copytree(version, version.with_name(str(number)))
    shutil.rmtree(version)
    shutil.copytree(folder / "runs" / "demo", folder / "runs" / "mine")
    return folder


def _published(folder: Path) -> None:
    """Puts a detector with random weights into the cache of weights, in place of the published one."""
    config = load_config(None, ["model.name=efficientdet-d0"])
    categories = json.loads((folder / "my_coco/annotations/instances_val.json").read_text())["categories"]
    weights = {one.path: one.numpy() for one in detector_from_config(config.model, categories).variables}
    place = folder / "weights" / "efficientdet-d0"
    place.mkdir(parents=True)
    write_model(ImportedModel("model", 0, config, categories, weights, {}, (), ()), place)


def workplace(inputs: Path, page: Path) -> Path:
    """Makes the folder in which the commands of a page run, with copies of the inputs that the page names."""
    text, folder = page.read_text(encoding="utf-8"), Path(tempfile.mkdtemp(prefix=f"{page.stem}-"))
    for source in inputs.iterdir():
        # What the page makes itself is made there.
        if (
            source.name.partition("-0")[0] in text
            and f"--output {source.name}\n" not in text
            and f"--output {source.name} " not in text
        ):
            (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / source.name)
    if page.stem == "centernet":
        shutil.rmtree(folder / "my_coco")
        shutil.copytree(inputs / "keypoints" / "my_coco", folder / "my_coco")
    if "import-checkpoint" in text:
        shutil.copytree(inputs / "checkpoints", folder, dirs_exist_ok=True)
    if not (folder / "weights").exists():
        (folder / "weights").symlink_to(inputs / "weights")
    return folder


def shell(line: str, folder: Path, *, limit: float) -> Outcome:
    """Runs a command line; interrupts it after `limit` seconds."""
    environment = {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "COCOFLOW_WEIGHTS": str(folder / "weights"),
        "COLUMNS": "200",
    }
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {line}"], cwd=folder, env=environment, stdout=output, stderr=output, text=True
        )
        stopped = False
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            stopped = True
            process.terminate()
            process.wait(60)
        output.seek(0)
        text = output.read()
    last = next((one for one in reversed(text.splitlines()) if one.strip()), "").strip()
    if stopped:
        return Outcome("running" if _TRAINING.search(text) else "FAILED", last)
    if process.returncode == 0:
        return Outcome("done", last)
    error = next((one for one in text.splitlines() if one.startswith("error: ")), None)
    expected = any(re.search(part, line) and re.search(said, error or last, re.I) for part, said in REFUSALS.items())
    return Outcome("refused" if expected else "FAILED", error or last)


def run_page(page: Path, inputs: Path, *, limit: float) -> Iterator[tuple[str, Outcome, float]]:
    """Yields each command of a page with its outcome and seconds."""
    folder = workplace(inputs, page)
    for line in documented_lines(page):
        if line.split()[0] in SHELL:
            continue
        start = time.monotonic()
        outcome = shell(line.partition(" #")[0], folder, limit=limit)
        yield line, outcome, time.monotonic() - start
        trained = re.search(r"train .*--output (\w+)", line)
        if outcome.state == "running" and trained:
            shutil.rmtree(folder / trained[1])
            shutil.copytree(inputs / "out", folder / trained[1])
    shutil.rmtree(folder)


def main() -> None:
    """Runs the pages; see the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, default=PAGES)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds after which a command is interrupted")
    args = parser.parse_args()
    states: list[str] = []
    with tempfile.TemporaryDirectory(prefix="documented-") as temporary:
        inputs = prepare(Path(temporary))
        for page in args.pages:
            for line, outcome, seconds in run_page(page, inputs, limit=args.limit):
                states.append(outcome.state)
                print(
                    f"{outcome.state:<8}{seconds:6.1f} s  {page.name}: {line}\n{'':18}{outcome.text[:200]}", flush=True
                )
    print(", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)))
    sys.exit("FAILED" in states)


if __name__ == "__main__":
    main()
