"""Detects objects on image files with the LiteRT or ONNX model beside this file.

    python client.py IMAGE [IMAGE ...] > detections.json

Needs NumPy, Pillow, and ai-edge-litert (LiteRT) or onnxruntime (ONNX).  Writes COCO results: `bbox` is
x, y, width, height in pixels of the stored image, `segmentation` a compressed RLE.  image_id counts the
images from 1.  A reference for clients in other languages: one function per step; `model.json`
contains the same rules.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

Array = np.ndarray[Any, Any]
Network = Callable[[Array], Mapping[str, Array]]


def load(folder: Path) -> tuple[dict[str, Any], Network]:
    """Loads the model in a folder.

    Returns:
        The content of `model.json`, and a function from a batch of inputs to the outputs by name.
    """
    description = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    content = (folder / description["file"]).read_bytes()
    if hashlib.sha256(content).hexdigest() != description["sha256"]:
        sys.exit(f"{folder / description['file']}: cut off or changed after its export. Copy the model again.")
    return description, {"litert": load_litert, "onnx": load_onnx}[description["format"]](content)


def load_litert(content: bytes) -> Network:
    """Loads a LiteRT file; only its signature has the names of inputs and outputs."""
    from ai_edge_litert.interpreter import Interpreter

    run = Interpreter(model_content=content).get_signature_runner("serving_default")
    return lambda images: dict(run(images=images))


def load_onnx(content: bytes) -> Network:
    """Loads an ONNX file."""
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda images: dict(zip(names, session.run(names, {"images": images}), strict=True))


def read_image(path: str) -> Array:
    """Returns the stored pixels, RGB uint8 [H, W, 3], ignoring EXIF orientation and alpha.

    The upper 8 of 16 bits per channel are kept.
    """
    with Image.open(path) as image:
        if image.mode.startswith("I"):  # 16 bits; Pillow would clip them
            return np.repeat((np.asarray(image) >> 8).astype(np.uint8)[..., np.newaxis], 3, axis=2)
        if image.mode == "CMYK":  # rounded down, as TensorFlow does; Pillow rounds to the nearest
            inks = 255 - np.asarray(image).astype(int)
            return (inks[..., :3] * inks[..., 3:] // 255).astype(np.uint8)
        # By way of RGBA: Pillow warns of palettes with transparency on the direct one.
        return np.asarray((image.convert("RGBA") if image.mode == "P" else image).convert("RGB"))


def resized_size(height: int, width: int, rule: Mapping[str, Any]) -> tuple[int, int]:
    """Returns the (height, width) of an image in the input, computed in float32 as in training.

    Args:
        height: of the image, pixels.
        width: of the image, pixels.
        rule: `input.resize` of model.json.
    """
    size = np.array([height, width], np.float32)
    scale = np.array(rule["size"], np.float32) / size  # mode `stretch`
    if rule["mode"] != "stretch":
        scale = scale.min()
    if rule["mode"] == "short_side":
        short, long = np.float32(rule["short_side"]), np.float32(rule["long_side"])
        scale = min(scale, short / size.min(), long / size.max())
        sides = np.round(size * scale)  # half to even
    else:
        sides = np.floor(size * scale + np.float32(1e-3))
    new_height, new_width = np.maximum(sides, 1).astype(int).tolist()
    return new_height, new_width


def resize(image: Array, height: int, width: int, *, half_pixel_centers: bool = True) -> Array:
    """Resizes [H, W, 3] to float32 [height, width, 3]: bilinear, no antialiasing."""
    centre = np.float32(0.5 if half_pixel_centers else 0.0)

    def neighbours(old: int, new: int) -> tuple[Array, Array, Array]:
        centres = (np.arange(new, dtype=np.float32) + centre) * np.float32(old / new) - centre
        low = np.floor(centres)
        first, last = np.maximum(low, 0).astype(int), np.minimum(np.ceil(centres), old - 1).astype(int)
        return first, last, centres - low

    top, bottom, down = neighbours(image.shape[0], height)
    left, right, across = neighbours(image.shape[1], width)
    down, across = down[:, np.newaxis, np.newaxis], across[:, np.newaxis]

    def row(index: Array) -> Array:
        first, last = (image[index][:, columns].astype(np.float32) for columns in (left, right))
        return first + (last - first) * across

    upper, lower = row(top), row(bottom)
    return upper + (lower - upper) * down


def network_input(image: Array, description: Mapping[str, Any]) -> tuple[Array, tuple[int, int]]:
    """Returns the input [B, H, W, 3], filled with one image, and the image's (height, width) in it.

    Pixels stay in 0 to 255: the model normalizes them.
    """
    given = description["input"]
    batch, height, width, _ = given["shape"]
    size = resized_size(image.shape[0], image.shape[1], given["resize"])
    pixels = np.empty((height, width, 3), np.float32)
    pixels[:] = given["padding"]
    centers = given["resize"].get("half_pixel_centers", True)
    pixels[: size[0], : size[1]] = resize(image, *size, half_pixel_centers=centers)
    if given["dtype"] == "uint8":
        pixels = np.rint(pixels).astype(np.uint8)
    return np.repeat(pixels[np.newaxis], batch or 1, axis=0), size


def detect(image: Array, description: Mapping[str, Any], network: Network) -> list[dict[str, Any]]:
    """Detects objects in an image [H, W, 3]; returns COCO results without image_id, best first."""
    inputs, resized = network_input(image, description)
    outputs = network(inputs)
    count = int(outputs["num_detections"][0])
    # From fractions of the input to fractions of the image, and then to pixels of the image.
    scale = np.array(inputs.shape[1:3], np.float32) / np.array(resized, np.float32)
    boxes = (outputs["detection_boxes"][0, :count] * np.tile(scale, 2)).astype(np.float64)
    height, width = image.shape[:2]
    results = []
    for number, box in enumerate(boxes):
        ymin, xmin, ymax, xmax = np.clip(box, 0, 1)  # a box may extend into the padding
        if ymin >= ymax or xmin >= xmax:  # or lie in it
            continue
        result: dict[str, Any] = {
            "category_id": int(outputs["detection_classes"][0, number]),
            "bbox": [xmin * width, ymin * height, (xmax - xmin) * width, (ymax - ymin) * height],
            "score": float(outputs["detection_scores"][0, number]),
        }
        if "detection_masks" in outputs:
            # Not clipped: a crop covers its complete box, including padding.
            inside = paste(outputs["detection_masks"][0, number], box * [height, width, height, width], height, width)
            result["segmentation"] = {"size": [height, width], "counts": compressed_rle(inside)}
        if "detection_keypoints" in outputs:
            points = outputs["detection_keypoints"][0, number] * [*scale, 1.0]
            result["keypoints"] = (points[:, [1, 0, 2]] * [width, height, 1.0]).ravel().tolist()
        results.append(result)
    return results


def paste(crop: Array, box: Array, height: int, width: int) -> Array:
    """Pastes the crop [m, m] of a mask into an image; returns bool [height, width].

    The crop is resized to the box by bilinear interpolation between the centers of its cells, sampled
    at pixel centers, with 0 outside of the crop.  Pixels of at least 0.5 belong to the mask.

    Args:
        crop: probabilities.
        box: (ymin, xmin, ymax, xmax) in pixels.
        height: of the image, pixels.
        width: of the image, pixels.
    """
    ymin, xmin, ymax, xmax = box
    if ymax <= ymin or xmax <= xmin:
        return np.zeros((height, width), bool)

    def weights(low: float, side: float, pixels: int) -> Array:
        places = (np.arange(pixels) + 0.5 - low) * len(crop) / side - 0.5
        return np.maximum(0.0, 1.0 - np.abs(places[:, np.newaxis] - np.arange(len(crop))))

    rows, columns = weights(ymin, ymax - ymin, height), weights(xmin, xmax - xmin, width)
    return np.asarray(rows @ crop.astype(np.float64) @ columns.T >= 0.5)


def compressed_rle(mask: Array) -> str:
    """Returns the compressed `counts` of COCO's RLE: runs along columns, background first."""
    flat = np.concatenate([[False], mask.T.ravel()])
    ends = np.append(np.flatnonzero(flat[1:] != flat[:-1]), mask.size)
    runs = np.diff(ends, prepend=0).tolist()
    characters = []
    for number, run in enumerate(runs):
        value, more = run - runs[number - 2] if number > 2 else run, True
        while more:  # 5 bits per character, low bits first; bit 5: more characters follow
            low, value = value & 31, value >> 5
            more = value != (-1 if low & 16 else 0)
            characters.append(chr(48 + low + 32 * more))
    return "".join(characters)


def main(paths: list[str]) -> None:
    """Runs the program."""
    if not paths:
        sys.exit(__doc__)
    description, network = load(Path(__file__).resolve().parent)
    results = []
    for number, path in enumerate(paths, 1):
        results += [{"image_id": number, **one} for one in detect(read_image(path), description, network)]
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
