"""Counts what a reader has to open to follow the program: modules of ours imported, files of ours entered.

    python -m benchmarks.reading_path [PATH ...]

Each path runs in a fresh process. A module counts once it is imported, packages included;
a file once one of its functions is called between the start and the result, class
bodies and what runs at import not counted; nor are the files of `schemas` and of
`detection/storage`, which stand for constants and for the file system.

evaluate: `cocoflow evaluate --ground-truth --detections`, to the metrics' table.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
_OURS = ("components", "detection", "pipeline_runner", "pipelines", "schemas")
_NOT_COUNTED = ("schemas/", "detection/storage/")
_NEWLOCALS = 0x2  # flag of a function's code, which neither a module's nor a class' body has


class ReadingPath(NamedTuple):
    """Modules imported and files entered, sorted."""

    modules: list[str]
    files: list[str]


def _evaluate() -> Callable[[], Any]:
    """Prepares `evaluate` of two small files, flags parsed."""
    import pipeline_runner

    kept = tempfile.TemporaryDirectory()
    folder = Path(kept.name)
    box = {"image_id": 1, "category_id": 1, "bbox": [10.0, 20.0, 30.0, 40.0]}
    ground_truth = {"images": [{"id": 1}], "annotations": [{"id": 1, **box}], "categories": [{"id": 1, "name": "cat"}]}
    (folder / "gt.json").write_text(json.dumps(ground_truth))
    (folder / "dt.json").write_text(json.dumps([{**box, "score": 0.5}]))
    flags = ["--ground-truth", str(folder / "gt.json"), "--detections", str(folder / "dt.json")]
    args = pipeline_runner.build_parser(["evaluate"]).parse_args(["evaluate", *flags])

    def run() -> Any:
        with kept:
            return args.run(args)

    return run


PATHS: dict[str, Callable[[], Callable[[], Any]]] = {"evaluate": _evaluate}


def trace(name: str) -> ReadingPath:
    """Follows one of `PATHS` in this process, which has imported nothing of ours before."""
    run = PATHS[name]()
    codes: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            codes.add(frame.f_code)

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    modules = sorted(module for module in sys.modules if module.split(".")[0] in _OURS)
    files = {code.co_filename for code in codes if code.co_flags & _NEWLOCALS}
    ours = {Path(file).relative_to(ROOT).as_posix() for file in files if Path(file).is_relative_to(ROOT)}
    counted = (file for file in ours if file.removesuffix(".py").split("/")[0] in _OURS)
    return ReadingPath(modules, sorted(file for file in counted if not file.startswith(_NOT_COUNTED)))


def measure(name: str) -> ReadingPath:
    """Follows one of `PATHS` in a fresh process."""
    code = f"import json; from benchmarks.reading_path import trace; print('\\n' + json.dumps(trace({name!r})))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return ReadingPath(*json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Prints the counts of the paths named, default all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", metavar="PATH", nargs="*", help=f"one of {', '.join(PATHS)}; default: all")
    for name in parser.parse_args().paths or PATHS:
        path = measure(name)
        print(f"{name}: {len(path.modules)} modules imported, {len(path.files)} files entered:")
        for file in path.files:
            print(f"  {file}")


if __name__ == "__main__":
    main()
