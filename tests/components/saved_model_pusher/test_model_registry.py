"""The pusher's registration with the real clients, against a loopback Vertex AI."""

from typing import Any

import pytest

from components.saved_model_pusher.model_registry import Registration, prebuilt_image, register
from detection.storage.atomic import write_bytes
from schemas.config.config_io import load_config
from schemas.errors import CocoflowError, ConfigError
from tests.vertex_service.fixture import NAMED, PARENT, PROJECT, LoopbackVertex


@pytest.fixture
def vertex(vertex_over_rest: LoopbackVertex) -> LoopbackVertex:
    return vertex_over_rest


def _settings(*assignments: str) -> Registration:
    given = ("run.root=gs://bucket/run", "run.name=digits", f"run.vertex.project={PROJECT}")
    config = load_config(None, [*given, "push.vertex.model_registry=true", *assignments])
    settings = Registration.of(config)
    assert settings is not None
    return Registration.model_validate_json(settings.model_dump_json())  # as it travels to the container


def _pushed(vertex: LoopbackVertex, number: int) -> str:
    version = f"{vertex.bucket.path}/serving/{number}"
    write_bytes(f"{version}/saved_model.pb", b"graph")
    return version


def _changes(vertex: LoopbackVertex) -> list[tuple[str, Any]]:
    """Path and body of the requests that change something."""
    return [(one["path"].removeprefix("/v1/"), one["body"]) for one in vertex.requests("POST")]


def test_a_version_is_uploaded(vertex: LoopbackVertex) -> None:
    version = _pushed(vertex, 17)
    assert register(version, _settings()) == f"{NAMED}/models/1001@1"
    [(path, body)] = _changes(vertex)
    assert path == f"{PARENT}/models:upload"
    assert body == {
        "model": {
            "displayName": "digits",
            "versionDescription": f"pushed to {version}",
            "versionAliases": ["default"],
            "artifactUri": version,
            "containerSpec": {"imageUri": "us-docker.pkg.dev/vertex-ai/prediction/tf2-cpu.2-15:latest"},
        }
    }


def test_all_settings_reach_the_service(vertex: LoopbackVertex) -> None:
    key = f"{PARENT}/keyRings/ring/cryptoKeys/key"
    settings = _settings(
        f"run.vertex.encryption_key={key}",
        "push.vertex.display_name=Street signs",
        "push.vertex.image=europe-docker.pkg.dev/p/r/serving:1",
        "push.vertex.predict_route=/v1/models/default:predict",
        "push.vertex.health_route=/v1/models/default",
        "push.vertex.port=8501",
        "push.vertex.version_aliases=[champion]",
        "push.vertex.labels={team: vision}",
    )
    version = _pushed(vertex, 17)
    register(version, settings)
    [(_, upload)] = _changes(vertex)
    assert upload["model"] == {
        "displayName": "Street signs",
        "versionDescription": f"pushed to {version}",
        "versionAliases": ["champion", "default"],
        "labels": {"team": "vision"},
        "artifactUri": version,
        "containerSpec": {
            "imageUri": "europe-docker.pkg.dev/p/r/serving:1",
            "predictRoute": "/v1/models/default:predict",
            "healthRoute": "/v1/models/default",
            "ports": [{"containerPort": 8501}],
        },
        "encryptionSpec": {"kmsKeyName": key},
    }


@pytest.mark.parametrize(
    ("region", "image"),
    [
        ("us-central1", "us-docker.pkg.dev/vertex-ai/prediction/tf2-cpu.2-15:latest"),
        ("europe-west4", "europe-docker.pkg.dev/vertex-ai/prediction/tf2-cpu.2-15:latest"),
        ("australia-southeast1", "asia-docker.pkg.dev/vertex-ai/prediction/tf2-cpu.2-15:latest"),
        ("southamerica-east1", "us-docker.pkg.dev/vertex-ai/prediction/tf2-cpu.2-15:latest"),
    ],
)
def test_the_prebuilt_container_is_one_that_the_client_lists(region: str, image: str) -> None:
    from google.cloud.aiplatform.constants import prediction

    assert prebuilt_image(region) == image
    assert image in prediction.SERVING_CONTAINER_URIS


def test_the_next_version_joins_the_model(vertex: LoopbackVertex) -> None:
    settings = _settings("push.vertex.version_aliases=[champion]")
    first = register(_pushed(vertex, 17), settings)
    vertex.requests()
    assert register(_pushed(vertex, 18), settings) == first.replace("@1", "@2")
    [(_, upload)] = _changes(vertex)
    assert upload["parentModel"] == first.removesuffix("@1")
    versions = vertex.kept("@")
    assert [one["versionAliases"] for one in versions.values()] == [[], ["champion", "default"]]


def test_a_repeated_run_uploads_nothing(vertex: LoopbackVertex) -> None:
    settings = _settings()
    for number in (15, 16, 17):  # several pages of versions
        registered = register(_pushed(vertex, number), settings)
    vertex.requests()
    assert register(f"{vertex.bucket.path}/serving/17", settings) == registered
    assert _changes(vertex) == []


def test_what_a_failure_left_is_made_up_for(vertex: LoopbackVertex) -> None:
    settings, version = _settings(), _pushed(vertex, 17)
    vertex.fail(0, {"code": 13, "message": "Internal error."}, method="none", operation="UploadModel")
    with pytest.raises(CocoflowError, match=rf"The version is pushed to {version}; a rerun registers it\."):
        register(version, settings)
    registered = register(version, settings)
    assert _versions(vertex, version) == [registered]


UNANSWERED = [503, 502, 504, 0]  # 0: the connection breaks


def _versions(vertex: LoopbackVertex, version: str) -> list[str]:
    """The registered versions of a pushed one."""
    return [name for name, one in vertex.kept("@").items() if one["versionDescription"] == f"pushed to {version}"]


@pytest.mark.parametrize("status", UNANSWERED)
@pytest.mark.parametrize("done", [True, False])
def test_an_upload_whose_answer_is_lost_is_reported(vertex: LoopbackVertex, *, status: int, done: bool) -> None:
    """It is not sent twice, and a rerun finds it."""
    settings, version = _settings(), _pushed(vertex, 17)
    register(_pushed(vertex, 16), settings)
    vertex.requests()
    vertex.refuse(status, "The service is unavailable.", path=":upload", after=done)
    described = rf'look for a version with the description "pushed to {version}" in the Model Registry before'
    with pytest.raises(CocoflowError, match=rf"It may have been done: {described}"):
        register(version, settings)
    assert len(_changes(vertex)) == done
    registered = register(version, settings)
    assert _versions(vertex, version) == [registered]


def test_names_and_numbers(vertex: LoopbackVertex) -> None:
    number = register(_pushed(vertex, 17), _settings()).split("/")[-1].removesuffix("@1")
    other = ("push.vertex.display_name=other", f"push.vertex.parent_model={number}")
    assert register(_pushed(vertex, 18), _settings(*other)) == f"{NAMED}/models/{number}@2"
    full = f"push.vertex.parent_model={NAMED}/models/{number}"
    assert register(_pushed(vertex, 19), _settings(full)) == f"{NAMED}/models/{number}@3"


def test_two_of_a_name(vertex: LoopbackVertex) -> None:
    register(_pushed(vertex, 17), _settings())
    register(_pushed(vertex, 18), _settings("push.vertex.display_name=other"))
    [_, other] = [name for name in vertex.kept("/models/") if "@" not in name]
    vertex.change(other, displayName="digits")
    with pytest.raises(CocoflowError, match=r"2 models are named digits: .* --set push.vertex.parent_model=ID\."):
        register(_pushed(vertex, 19), _settings())


def test_a_local_folder_is_refused(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match="Vertex AI reads models from Cloud Storage"):
        register(str(tmp_path / "17"), _settings())
    with pytest.raises(ConfigError, match=r"run\.root = runs/default is elsewhere"):
        load_config(None, ["push.vertex.model_registry=true"])
