"""Files for MediaPipe in a browser, by the code that docs/phones.md shows: on the CPU, and by WebGL in software."""

import http.server
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.browser import Page, find_browser, running_browser
from tests.detection.export.test_mediapipe_model import (
    CATEGORIES,
    SCORE,
    assert_both_find,
    convert,
    images,
    of_detector,
    stretching,
)

pytestmark = [pytest.mark.extended, pytest.mark.slow]
_PACKAGE = "@mediapipe/tasks-vision@1.1.0"
_SOFTWARE = ("--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--ignore-gpu-blocklist")
_DETECT = """
(async () => {
  const { FilesetResolver, ObjectDetector } = await import("/node_modules/@mediapipe/tasks-vision/vision_bundle.mjs");
  const files = await FilesetResolver.forVisionTasks("/node_modules/@mediapipe/tasks-vision/wasm");
  const detector = await ObjectDetector.createFromOptions(files, {
    baseOptions: { modelAssetPath: "/MODEL.tflite", delegate: "DELEGATE" },
    scoreThreshold: 0.01,
  });
  const found = [];
  for (let number = 0; number < COUNT; number++) {
    const image = new Image();
    image.src = `/${number}.png`;
    await image.decode();
    found.push(detector.detect(image).detections.flatMap(({ boundingBox: box, categories }) =>
      categories.map((one) => [box.originX, box.originY, box.width, box.height, one.categoryName, one.score])));
  }
  return JSON.stringify(found);
})()
"""

__all__ = ["images"]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Prints nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A folder with MediaPipe's package, and its address."""
    folder = tmp_path_factory.mktemp("site")
    npm = shutil.which("npm")
    if npm is None or find_browser() is None:
        pytest.skip("needs npm and a browser")
    command = [npm, "install", "--silent", "--no-audit", "--prefix", str(folder), _PACKAGE]
    if subprocess.run(command, check=False, capture_output=True, timeout=300).returncode:
        pytest.skip(f"npm cannot install {_PACKAGE}")
    (folder / "index.html").write_text("<!doctype html><title>detector</title>")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield folder, f"http://127.0.0.1:{server.server_port}/index.html"
    server.shutdown()


def _detect(site: tuple[Path, str], content: bytes, pictures: list[Any], delegate: str) -> list[list[tuple[Any, ...]]]:
    folder, address = site
    (folder / f"{delegate}.tflite").write_bytes(content)
    for number, pixels in enumerate(pictures):
        Image.fromarray(pixels).save(folder / f"{number}.png")
    script = _DETECT.replace("MODEL", delegate).replace("DELEGATE", delegate).replace("COUNT", str(len(pictures)))
    program = find_browser()
    assert program is not None
    with running_browser(program, *_SOFTWARE) as browser:
        found = json.loads(Page(browser, address).evaluate(script))
    return [[tuple(one) for one in of_image] for of_image in found]


def test_the_file_for_cpus_finds_what_the_saved_model_finds(site: tuple[Path, str], images: list[Any]) -> None:
    detector = stretching()
    found = _detect(site, convert(detector), images, "CPU")
    for ours, theirs in zip(of_detector(detector, images, CATEGORIES), found, strict=True):
        assert_both_find(theirs, ours)
    assert sum(score > SCORE for one in found for *_, score in one) > 20


def test_the_file_for_gpus_runs_by_webgl(site: tuple[Path, str], images: list[Any]) -> None:
    """It finds what the same file finds on the CPU: MediaPipe suppresses boxes itself."""
    content = convert(stretching(), "gpu")
    on_cpu, by_webgl = (_detect(site, content, images, delegate) for delegate in ("CPU", "GPU"))
    assert sum(map(len, by_webgl)) > 20
    for some, others in zip(on_cpu, by_webgl, strict=True):
        scores = [sorted((one[5] for one in each), reverse=True)[:5] for each in (some, others)]
        np.testing.assert_allclose(scores[0], scores[1], atol=0.02)
