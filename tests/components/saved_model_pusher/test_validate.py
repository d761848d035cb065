"""Validation in a process of its own: what it answers, and every way in which it may end without an answer."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from components.saved_model_pusher import validate as validating
from components.saved_model_pusher.validate import Validation, validate
from schemas.errors import DataError
from tests.components.saved_model_pusher.served_models import evaluated_sample
from tests.detection.fake_detector import save_fake_detector


def check(folder: Path, sample: Path, *, timeout: float = 120.0) -> Validation:
    return validate(folder, sample, images=3, tolerance=0.001, timeout=timeout, name="runs/model")


def test_a_process_with_tensorflow_alone_finds_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.getcwd())  # the process finds our packages, and refuses them
    model = save_fake_detector(tmp_path / "model")
    sample = evaluated_sample(tmp_path, model, images=4)
    validation = check(model, sample)
    assert (validation.images, validation.unmatched, validation.tolerance) == (3, 0, 0.001)
    assert validation.detections > 0
    assert validation.max_difference == {"detection_boxes": 0.0, "detection_scores": 0.0}
    assert list(validation.seconds) == ["load", "run", "import", "total"]
    assert json.loads(json.dumps(validation._asdict())) == validation._asdict()


PROGRAMS = {
    "killed": (
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "killed by SIGKILL, as the kernel does if memory runs out",
    ),
    "segfault": ("import ctypes; ctypes.string_at(0)", "the process crashed with SIGSEGV"),
    "aborted": (
        "import os, sys; print('F0000 check failed: x', file=sys.stderr, flush=True); os.abort()",
        "crashed with SIGABRT, its last words: F0000 check failed: x",
    ),
    "error": ("raise MemoryError('too\\x1b[31m large')", "exit code 1 .* its last words: MemoryError: too.* large"),
    "silent": ("import os; os._exit(0)", "the process ended with exit code 0 before it answered"),
    "half": (
        "import sys; open(sys.argv[5], 'w').write('{\"images\": ')",
        "the process ended with exit code 0 before it answered",
    ),
    "late crash": (
        "import os, sys; open(sys.argv[5], 'w').write('{\"images\": 3}'); os.abort()",
        "the process crashed with SIGABRT",
    ),
    "import": (
        f"import runpy, sys; program = runpy.run_path({str(validating._PROGRAM)!r})\n"
        "sys.meta_path.insert(0, program['OnlyTensorFlow']()); import detection.inference",
        "ModuleNotFoundError: No module named 'detection.*: a server has TensorFlow only",
    ),
    "path": (
        "import only_here",  # in a folder of this process's path
        "ZeroDivisionError: division by zero",
    ),
    "slow": ("import time; time.sleep(600)", r"it has not ended after 0\.5 seconds \(push\.validation\.timeout\)"),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_whoever_gives_no_answer_is_refused(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, message = PROGRAMS[program]
    (tmp_path / "program.py").write_text(source)
    (tmp_path / "only_here.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(validating, "_PROGRAM", tmp_path / "program.py")
    monkeypatch.chdir(Path(__file__).parents[3])
    with pytest.raises(DataError, match=message) as caught:
        check(tmp_path, tmp_path / "sample.npz", timeout=0.5 if program == "slow" else 60.0)
    assert "\x1b" not in str(caught.value)


def test_the_process_ends_with_a_killed_pusher(tmp_path: Path) -> None:
    pipe, program = tmp_path / "pipe", tmp_path / "program.py"
    os.mkfifo(pipe)
    program.write_text(
        "import time\n"
        f"with open({str(pipe)!r}, 'w', buffering=1) as pipe:\n"
        "    print('begun', file=pipe)\n"
        "    time.sleep(20)\n"
        "    print('lived', file=pipe)\n"
    )
    pusher = f"""
from pathlib import Path
from components.saved_model_pusher import validate as validating
validating._PROGRAM = Path({str(program)!r})
folder = Path({str(tmp_path)!r})
validating.validate(folder, folder / "sample.npz", images=1, tolerance=0.1, timeout=60, name="model")
"""
    with subprocess.Popen([sys.executable, "-c", pusher]) as process, pipe.open() as output:
        assert output.readline() == "begun\n"
        process.send_signal(signal.SIGKILL)
        assert output.read() == "", "nobody is left to write"
