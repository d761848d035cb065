"""`doctor`: planted faults, each with its line, its remedy and the exit code."""

import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

import pipeline_runner
from detection.devices import DRIVER
from pipelines.runs import doctor
from pipelines.runs.doctor import Check, diagnose
from schemas.config.config_io import load_config
from schemas.config.run import ACCELERATOR_VARIABLE
from schemas.program import install_hint
from tests.detection.gpu_driver import ABSENT, load_only

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT", "CUDA_VISIBLE_DEVICES", "KUBEFLOW_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")


def _diagnose(*assignments: str, lock: Path | None = None) -> dict[str, Check]:
    checks = diagnose(load_config(None, assignments), lock)
    assert all(check.remedy for check in checks if check.state != "ok")
    return {check.subject: check for check in checks}


def _write_lock(folder: Path, *lines: str) -> Path:
    lock = folder / "requirements.lock"
    lock.write_text("".join(f"{line} \\\n    --hash=sha256:0 \\\n    --hash=sha256:1\n" for line in lines))
    return lock


def test_packages_that_differ_from_the_lock_are_listed(tmp_path: Path) -> None:
    lock = _write_lock(
        tmp_path,
        "numpy==0.0.1",
        "cocoflow-absent==1.0 ; python_full_version >= '3.0'",
        "cocoflow-of-others==1.0 ; python_full_version < '3.0'",
        f"pyyaml=={version('pyyaml')}",
        "nvidia-of-gpus-only==1.0",
    )
    checks = _diagnose(lock=lock)
    assert checks["numpy"] == Check("numpy", "broken", f"{version('numpy')}; locked: 0.0.1", "make env")
    assert checks["cocoflow-absent"].found == "not installed; locked: 1.0"
    assert not {"cocoflow-of-others", "pyyaml", "nvidia-of-gpus-only", "requirements.lock"} & checks.keys()


def test_an_environment_for_gpus_is_held_against_the_locks_cuda_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        metadata = tmp_path / f"site/nvidia_{name}-1.0.dist-info/METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: nvidia-{name}\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    lock = _write_lock(tmp_path, "nvidia-one==1.0", "nvidia-two==2.0", "nvidia-three==3.0")
    checks = _diagnose(lock=lock)
    assert {name: check.found for name, check in checks.items() if name.startswith("nvidia")} == {
        "nvidia-two": "1.0; locked: 2.0",
        "nvidia-three": "not installed; locked: 3.0",
    }


def test_without_a_lock_nothing_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_find_lock", lambda: None)
    assert _diagnose()["requirements.lock"].state == "missing"


def test_a_missing_library_of_a_gpu_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    load_only(monkeypatch, "libcudnn")
    checks = _diagnose()
    [cudnn] = [name for name in checks if name.startswith("libcudnn")]
    assert checks[cudnn] == Check(cudnn, "broken", ABSENT, "only for GPUs: make env GPU=1, see docs/gpu.md")
    assert (checks[DRIVER].state, checks["devices"].state) == ("ok", "broken")
    assert checks["devices"].found.startswith(f"no GPU: {cudnn} cannot be loaded")


def test_a_gpu_is_missed_where_the_configuration_asks_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    load_only(monkeypatch, "lib")
    without, asked = _diagnose(), _diagnose("train.strategy=mirrored")
    monkeypatch.setenv(ACCELERATOR_VARIABLE, "NVIDIA_L4")
    given = _diagnose()
    assert (without["devices"].state, without[DRIVER].state) == ("ok", "missing")
    for checks in (asked, given):
        assert (checks["devices"].state, checks[DRIVER].state) == ("broken", "broken")
        assert checks["devices"].found.startswith("no GPU: no NVIDIA driver")


def test_a_tensorflow_that_cannot_be_imported_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    devices = _diagnose()["devices"]
    assert (devices.state, devices.remedy) == ("broken", "make env")
    assert devices.found.startswith("TensorFlow cannot be imported: ")


def test_a_missing_package_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_PACKAGES", ("keras", "cocoflow-absent"))
    checks = _diagnose()
    assert checks["keras"] == Check("keras", "ok", version("keras"))
    assert checks["cocoflow-absent"] == Check(
        "cocoflow-absent", "broken", "not installed", install_hint("cocoflow-absent")
    )


def test_little_memory_and_disk_are_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       16000000 kB\nMemFree:  1 kB\nMemAvailable:    1000000 kB\n")
    monkeypatch.setattr(doctor, "_MEMINFO", meminfo)
    usage = doctor.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage._replace(free=10**9))
    checks = _diagnose(f"run.root={tmp_path}/not/yet")
    assert checks["memory"].state == "broken"
    assert checks["memory"].found == "1.0 of 16.4 GB available"
    assert (checks["run.root"].state, checks["temporary files"].state) == ("broken", "broken")
    assert checks["run.root"].found == f"{tmp_path}/not/yet: 1.0 GB free"


@pytest.mark.parametrize(
    ("assignment", "state"),
    [
        ("run.root=runs/x", "missing"),
        ("run.root=gs://bucket/x", "broken"),
        ("data.root=gs://bucket/x", "broken"),
        ("run.vertex.project=mine", "broken"),
    ],
)
def test_missing_credentials_are_broken_where_a_path_or_service_needs_them(assignment: str, state: str) -> None:
    checks = _diagnose(assignment)
    assert (checks["Google credentials"].state, checks["Google credentials"].found) == (state, "none")
    assert "gcloud auth application-default login" in checks["Google credentials"].remedy
    assert ("run.root" in checks) == (assignment != "run.root=gs://bucket/x")
    assert (checks["Vertex AI project"].found == "mine") == ("vertex" in assignment)


def test_the_files_of_credentials_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "gcloud/application_default_credentials.json"
    file.parent.mkdir()
    user = {"type": "authorized_user", "client_id": "i", "client_secret": "s", "refresh_token": "t"}
    file.write_text(json.dumps(user))
    assert _diagnose("run.root=gs://bucket/x")["Google credentials"] == Check("Google credentials", "ok", str(file))
    file.write_text("{}")
    assert _diagnose("run.root=gs://bucket/x")["Google credentials"].state == "broken"
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", f"{tmp_path}/absent.json")
    credentials = _diagnose("run.root=gs://bucket/x")["Google credentials"]
    assert credentials.state == "broken"
    assert f"{tmp_path}/absent.json" in credentials.found


@pytest.fixture(params=[{"Metadata-Flavor": "Google"}, {}])
def answering_server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """Any web server in the place of the metadata server; True if it is Google's."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            for name, value in request.param.items():
                self.send_header(name, value)
            self.end_headers()

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{server.server_port}")
        yield bool(request.param)
        server.shutdown()


def test_a_machine_on_google_cloud_has_its_own(answering_server: bool) -> None:
    assert (_diagnose()["Google credentials"].state == "ok") == answering_server


def test_variables_with_secrets_must_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    asks = "run.kubeflow.credentials=token"
    assert _diagnose(asks)["KUBEFLOW_TOKEN"].state == "broken"
    monkeypatch.setenv("KUBEFLOW_TOKEN", "secret")
    checks = _diagnose(asks)
    assert checks["KUBEFLOW_TOKEN"].state == "ok"
    assert not any("secret" in " ".join(check) for check in checks.values())


@pytest.mark.parametrize(("state", "code"), [("ok", 0), ("missing", 0), ("broken", 1)])
def test_the_exit_code_says_whether_a_run_can_start(
    state: doctor.State, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check = Check("disk", state, "full", "free [space]")
    monkeypatch.setattr(doctor, "diagnose", lambda config: [check])
    assert pipeline_runner.main(["doctor"]) == code
    [row] = [line for line in capsys.readouterr().out.splitlines() if "disk" in line]
    assert row.strip().split(maxsplit=3) == ["disk", state, "full", "free [space]"]
    assert pipeline_runner.main(["doctor", "--json"]) == code
    assert json.loads(capsys.readouterr().out) == {"ok": code == 0, "checks": [check._asdict()]}


@pytest.mark.slow
def test_it_does_not_import_tfx() -> None:
    code = (
        "import sys, pipeline_runner; pipeline_runner.main(['doctor', '--json']); "
        "sys.exit(bool({'tfx', 'apache_beam', 'kfp'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {"python", "tensorflow", "devices", DRIVER, "memory", "run.root"} <= {
        check["subject"] for check in json.loads(done.stdout)["checks"]
    }
