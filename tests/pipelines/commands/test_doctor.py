"""`doctor`: planted faults, each with its line, its remedy and the exit code."""

import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest

import pipeline_runner
from detection.devices import DRIVER
from pipelines.runs import doctor
from pipelines.runs.doctor import Check, diagnose
from schemas.config.config_io import load_config
from schemas.config.run import ACCELERATOR_VARIABLE
from schemas.program import install_hint
from tests.detection.gpu_driver import ABSENT, load_only, show_gpus

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


def _sections(text: str) -> dict[str, list[str]]:
    """Subjects of the checks by the title above them."""
    sections: dict[str, list[str]] = {"": []}
    for line in filter(str.strip, text.splitlines()):
        if line.startswith("Only for"):
            sections[line.strip()] = []
        elif not line.strip().startswith(("check ", "─")):
            sections[list(sections)[-1]].append(line.strip().split("  ")[0])
    return sections


def test_what_is_only_for_gpus_or_clouds_is_in_tables_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    memory, driver = Check("memory", "ok", "enough"), Check(DRIVER, "missing", "absent", "install it")
    credentials = Check("Google credentials", "missing", "none", "log in")
    doctor.print_checks([driver, memory, credentials, Check("Vertex AI project", "ok", "mine")])
    assert _sections(capsys.readouterr().out) == {
        "": ["memory"],
        "Only for GPUs": [DRIVER],
        "Only for clouds": ["Google credentials", "Vertex AI project"],
    }
    # What this configuration needs is not optional.
    doctor.print_checks([memory, driver._replace(state="broken"), credentials._replace(state="broken")])
    assert _sections(capsys.readouterr().out) == {"": ["memory", DRIVER, "Google credentials"]}


@pytest.fixture
def own_environment(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An environment that its user made: the requirements of the Cocoflow in it, to be filled by the test."""
    requirements: list[str] = []
    monkeypatch.setattr(doctor, "is_locked", lambda: False)
    monkeypatch.setattr(doctor, "own_distribution", lambda: SimpleNamespace(requires=requirements))
    monkeypatch.setattr(doctor, "install_command", lambda extra="": f"pip install wheel[{extra}]")
    return requirements


def test_an_environment_of_ones_own_is_held_against_the_requirements(own_environment: list[str]) -> None:
    own_environment += ["keras>=3", "numpy ; python_version >= '3'", "cocoflow-absent==9 ; python_version < '3'"]
    own_environment += ["cocoflow-absent ; extra == 'onnx'", "keras<1 ; extra == 'onnx'"]
    checks = _diagnose()
    assert checks["requirements"].state == "ok"
    assert checks["requirements"].found == "all 2 required packages have versions that cocoflow takes"
    assert checks["requirements.lock"].state == "missing"
    assert checks["keras"].state == "ok", "an extra that is not installed requires nothing"
    own_environment[:] = ["cocoflow-absent>=2", "pyyaml<1", "pyyaml ; extra == 'dask'", "numpy<1 ; extra == 'dask'"]
    checks = _diagnose()
    assert "requirements" not in checks
    absent = Check("cocoflow-absent", "broken", "not installed; required: >=2", "pip install wheel[]")
    assert checks["cocoflow-absent"] == absent
    assert checks["pyyaml"].found == f"{version('pyyaml')}; required: <1"
    assert checks["numpy"] == Check("numpy", "broken", f"{version('numpy')}; required: <1", "pip install wheel[dask]")


def test_the_packages_of_an_extra_are_only_for_what_needs_it(
    own_environment: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_installed_version", lambda name: None if name in ("tfx", "keras") else "1.0")
    checks = _diagnose()
    assert checks["tfx"] == Check("tfx", "missing", "not installed", "only for pipelines: pip install wheel[tfx]")
    assert checks["keras"].state == "broken"
    monkeypatch.setattr(doctor, "is_locked", lambda: True)
    assert _diagnose(lock=doctor.SOURCE_TREE / "requirements.lock")["tfx"].state == "broken"


def test_a_gpu_that_tensorflow_has_no_kernels_for_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    load_only(monkeypatch, "no library")
    show_gpus(monkeypatch, ("NVIDIA GeForce RTX 5090", (12, 0)))
    devices = _diagnose()["devices"]
    assert (devices.state, devices.remedy) == ("broken", "docs/gpu.md")
    assert devices.found.startswith("GPU 0 NVIDIA GeForce RTX 5090 (compute capability 12.0): TensorFlow ")
    assert "CUDA_VISIBLE_DEVICES=-1 uses the CPU" in devices.found
    show_gpus(monkeypatch, ("NVIDIA L4", (8, 9)))
    assert _diagnose()["devices"].state == "ok"


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
