"""The runner of `run.beam_args` is checked before any work; the Dask cluster is a real one."""

import importlib.util
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import pipeline_runner
from components.beam import dask_cluster
from components.beam.preflight import require_runner
from schemas.errors import CocoflowError, ConfigError
from tests.components.beam.cluster import dask_cluster as running_cluster

REPOSITORY = Path(__file__).parents[3]
STAND_INS = "tests.components.beam.stand_ins"


def dask(address: str) -> list[str]:
    return ["--runner=dask", f"--dask_client_address={address}"]


def refusal(beam_args: list[str], folder: Path) -> CocoflowError:
    with pytest.raises(CocoflowError) as caught:
        require_runner(beam_args, str(folder))
    assert "\n" not in str(caught.value)
    assert not any(folder.iterdir())
    return caught.value


@pytest.mark.parametrize(
    "address", ["", "HOST", "HOST:8786", "http://x", "tcp://", "tcp://h", "tcp://h:x", "tcp://h:99999", "tcp://a:b:1"]
)
def test_an_address_is_that_of_a_scheduler(address: str, tmp_path: Path) -> None:
    error = refusal(dask(address), tmp_path)
    assert isinstance(error, ConfigError)
    assert "--dask_client_address=tcp://HOST:8786" in str(error)


@pytest.mark.parametrize("host", ["192.0.2.7", "0.0.0.0", "::", "no-such-host.invalid", "127.0.0.1:80", "a" * 64])
def test_the_driver_listens_at_one_address_of_this_machine(host: str, tmp_path: Path) -> None:
    error = refusal([*dask("tcp://127.0.0.1:1"), f"--dask_driver_host={host}"], tmp_path)
    assert isinstance(error, ConfigError)
    assert f"--dask_driver_host={host}: not an address of this machine" in str(error)


@pytest.fixture
def unused() -> str:
    """An address at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"tcp://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture(params=[b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def other_server(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a server that says nothing, or that is a web page as Dask's dashboard is."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            connection.sendall(request.param)
            connection.recv(1)  # waits for its end

        threading.Thread(target=answer, daemon=True).start()
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"


def test_what_listens_is_a_scheduler(
    unused: str, other_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert f"{unused}: no Dask scheduler answers (ConnectionRefusedError" in str(refusal(dask(unused), tmp_path))
    without_certificates = str(refusal(dask(unused.replace("tcp", "tls")), tmp_path))
    assert "Dask's configuration has no certificates" in without_certificates
    monkeypatch.setattr(dask_cluster, "_ANSWER", 0.5)
    assert f"{other_server}: no Dask scheduler answers" in str(refusal(dask(other_server), tmp_path))


def test_workers_have_this_cocoflow(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    with running_cluster(tmp_path / "dask", ["w0"]) as cluster:
        require_runner(cluster.beam_args, str(work))

        def refusal_after(name: str, value: str | None) -> str:
            with Client(cluster.address, set_as_default=False) as client:
                client.run(answers, name, value)
            return str(refusal(cluster.beam_args, work))

        assert re.search(r"w0 \(tcp://.*\): .* environment has no Cocoflow", refusal_after("cocoflow", None))
        assert ", Beam 2.0.0, Cocoflow" in refusal_after("apache-beam", "2.0.0")
        assert "has Python 2.7, Beam" in refusal_after("python", "2.7.18.final.0")
        cluster.workers["w0"].kill()
        deadline = time.monotonic() + 30
        while "has no worker" not in (message := str(refusal(cluster.beam_args, work))):
            assert time.monotonic() < deadline, message
        assert f"dask worker {cluster.address}" in message


def answers(name: str, value: str | None) -> None:
    """Makes a worker answer as one with another version of a package; runs there."""
    from distributed import node, versions

    def get_versions(packages: Iterable[str] | None = None) -> dict[str, dict[str, Any]]:
        return {"packages": {**versions.get_package_info(packages or ()), name: value}}

    node.get_versions = get_versions


def test_commands_check_before_any_work(unused: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model, data, out = (tmp_path / name for name in ("model", "data", "out"))
    model.mkdir()  # no model
    data.mkdir()  # no data set
    beam_args = f"run.beam_args={json.dumps(dask(unused))}"
    for command in (
        ["run", "--data", data, "--set", f"run.root={out}"],
        ["evaluate", "--model", model, "--examples", data, "--output", out],
        ["to-examples", "--data", data, "--output", out],
    ):
        assert pipeline_runner.main([*map(str, command), "--set", beam_args]) == 1
        assert f"error: {unused}: no Dask scheduler answers" in capfd.readouterr().err
        assert sorted(tmp_path.iterdir()) == [data, model]


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "distributed" else found(name))
    error = refusal(dask("tcp://127.0.0.1:1"), tmp_path)
    assert isinstance(error, ConfigError)
    assert "No module named 'distributed'. Install" in str(error)


@pytest.mark.parametrize(
    ("beam_args", "message"),
    [
        (["--runner=NoSuchRunner"], "Unexpected pipeline runner: NoSuchRunner"),
        (["--runner=no.such.Runner"], "ModuleNotFoundError: No module named 'no'"),
        ([f"--runner={STAND_INS}.Nothing"], "has no attribute 'Nothing'"),
        (["--runner=pathlib.Path"], "'PosixPath' object has no attribute"),
        (["--direct_num_workers=many"], "argument --direct_num_workers: invalid int value: 'many'"),
        (["--direct_running_mode=fast"], "argument --direct_running_mode: invalid choice: 'fast'"),
    ],
)
def test_arguments_that_beam_refuses(beam_args: list[str], message: str, tmp_path: Path) -> None:
    error = refusal(beam_args, tmp_path)
    assert isinstance(error, ConfigError)
    assert message in str(error)


def test_an_unknown_runner_runs_a_small_pipeline_first(tmp_path: Path) -> None:
    require_runner([f"--runner={STAND_INS}.RightRunner"], str(tmp_path))
    assert not any(tmp_path.iterdir())
    failed = refusal([f"--runner={STAND_INS}.FailingRunner"], tmp_path)
    assert r"FailingRunner: a small test pipeline failed: RuntimeError: no cluster\nat localhost:8081." in str(failed)
    idle = refusal([f"--runner={STAND_INS}.IdleRunner"], tmp_path)
    assert "elements of finish_bundle, tagged elements, groups of GroupByKey, a side input did not arrive" in str(idle)


def test_workers_that_do_not_reach_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CocoflowError, match=r"test pipeline failed: .*file.*: cannot write"):
        require_runner([f"--runner={STAND_INS}.RightRunner"], str(tmp_path / "file"))


@pytest.mark.extended  # test_an_unknown_runner_runs_a_small_pipeline_first has a runner that loses all
def test_the_losses_of_beams_own_dask_runner_are_seen(tmp_path: Path) -> None:
    """In a process of its own: its options clash with ours once both are imported."""
    output, beam_args = tmp_path / "out", [f"--runner={STAND_INS}.StockDaskRunner"]
    command = ["to-examples", "--data", str(tmp_path / "none"), "--output", str(output)]
    called = subprocess.run(
        [sys.executable, "pipeline_runner.py", *command, "--set", f"run.beam_args={json.dumps(beam_args)}"],
        cwd=REPOSITORY,
        check=False,
        capture_output=True,
        text=True,
    )
    assert called.returncode == 1
    assert (
        "StockDaskRunner: a small test pipeline ended without an error, but elements of finish_bundle" in called.stderr
    )
    assert not any(tmp_path.iterdir())
