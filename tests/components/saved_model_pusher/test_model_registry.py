"""The pusher's registration and deployment with the real clients, against a loopback Vertex AI."""

import re
from typing import Any

import pytest

from components.saved_model_pusher.model_registry import Registered, Registration, register
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
    assert register(version, _settings()) == Registered(f"{NAMED}/models/1001@1", None)
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
        "push.vertex.endpoint.name=signs",
        "push.vertex.endpoint.machine_type=g2-standard-8",
        "push.vertex.endpoint.accelerator=NVIDIA_L4",
        "push.vertex.endpoint.min_replicas=2",
        "push.vertex.endpoint.max_replicas=5",
        "push.vertex.endpoint.service_account=server@my-project.iam.gserviceaccount.com",
    )
    version = _pushed(vertex, 17)
    registered = register(version, settings)
    (_, upload), (created, endpoint), (deployed, deployment) = _changes(vertex)
    encryption = {"encryptionSpec": {"kmsKeyName": key}}
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
        **encryption,
    }
    assert (created, endpoint) == (
        f"{PARENT}/endpoints",
        {"displayName": "signs", "labels": {"team": "vision"}, **encryption},
    )
    assert deployed == f"{registered.endpoint}:deployModel"
    assert deployment == {
        "deployedModel": {
            "model": registered.model,
            "displayName": "Street signs",
            "serviceAccount": "server@my-project.iam.gserviceaccount.com",
            "dedicatedResources": {
                "machineSpec": {"machineType": "g2-standard-8", "acceleratorType": "NVIDIA_L4", "acceleratorCount": 1},
                "minReplicaCount": 2,
                "maxReplicaCount": 5,
            },
        },
        "trafficSplit": {"0": 100},
    }


@pytest.mark.parametrize(
    ("region", "accelerator", "image"),
    [
        ("us-central1", "null", "us-docker.pkg.dev/vertex-ai/prediction/tf2-cpu.2-15:latest"),
        ("europe-west4", "NVIDIA_L4", "europe-docker.pkg.dev/vertex-ai/prediction/tf2-gpu.2-15:latest"),
        ("australia-southeast1", "null", "asia-docker.pkg.dev/vertex-ai/prediction/tf2-cpu.2-15:latest"),
        ("southamerica-east1", "null", "us-docker.pkg.dev/vertex-ai/prediction/tf2-cpu.2-15:latest"),
    ],
)
def test_the_prebuilt_container_is_one_that_the_client_lists(region: str, accelerator: str, image: str) -> None:
    from google.cloud.aiplatform.constants import prediction

    from components.saved_model_pusher.model_registry import prebuilt_image

    endpoint = ("push.vertex.endpoint.name=x", f"push.vertex.endpoint.accelerator={accelerator}")
    assert prebuilt_image(_settings(f"run.vertex.region={region}", *endpoint)) == image
    assert image in prediction.SERVING_CONTAINER_URIS


def test_the_next_version_joins_the_model_and_takes_its_place_at_the_endpoint(vertex: LoopbackVertex) -> None:
    settings = _settings("push.vertex.endpoint.name=digits", "push.vertex.version_aliases=[champion]")
    first = register(_pushed(vertex, 17), settings)
    vertex.requests()
    second = register(_pushed(vertex, 18), settings)
    assert (second.model, second.endpoint) == (first.model.replace("@1", "@2"), first.endpoint)
    (uploaded, upload), (deployed, deployment), (undeployed, undeployment) = _changes(vertex)
    assert upload["parentModel"] == first.model.removesuffix("@1")
    assert deployment["trafficSplit"] == {"0": 100}
    assert [uploaded.rpartition(":")[2], deployed.rpartition(":")[2], undeployed.rpartition(":")[2]] == [
        "upload",
        "deployModel",
        "undeployModel",
    ]
    assert undeployed.startswith(f"{first.endpoint}:")
    [endpoint] = vertex.kept("/endpoints/").values()
    [serving] = endpoint["deployedModels"]
    assert serving["modelVersionId"] == "2"
    assert endpoint["trafficSplit"] == undeployment["trafficSplit"] == {serving["id"]: 100}
    versions = vertex.kept("@")
    assert [one["versionAliases"] for one in versions.values()] == [[], ["champion", "default"]]


def test_a_repeated_run_uploads_and_deploys_nothing(vertex: LoopbackVertex) -> None:
    settings = _settings("push.vertex.endpoint.name=digits")
    for number in (15, 16, 17):  # several pages of versions
        registered = register(_pushed(vertex, number), settings)
    vertex.requests()
    assert register(f"{vertex.bucket.path}/serving/17", settings) == registered
    assert _changes(vertex) == []


def test_a_share_of_the_traffic(vertex: LoopbackVertex) -> None:
    settings = _settings("push.vertex.endpoint.name=digits", "push.vertex.endpoint.traffic_percent=20")
    register(_pushed(vertex, 17), settings)
    register(_pushed(vertex, 18), settings)
    register(f"{vertex.bucket.path}/serving/18", settings)
    [endpoint] = vertex.kept("/endpoints/").values()
    shares = {one["modelVersionId"]: endpoint["trafficSplit"][one["id"]] for one in endpoint["deployedModels"]}
    assert shares == {"1": 80, "2": 20}


def test_what_a_failure_left_is_made_up_for(vertex: LoopbackVertex) -> None:
    settings = _settings("push.vertex.endpoint.name=digits")
    register(_pushed(vertex, 17), settings)
    error = {"code": 8, "message": "The following quotas are exceeded: CustomModelServingCPUsPerProjectPerRegion"}
    vertex.fail(0, error, method="none", operation="DeployModel")
    version = _pushed(vertex, 18)
    with pytest.raises(CocoflowError) as raised:
        register(version, settings)
    assert re.fullmatch(
        rf"Vertex AI: cannot deploy {NAMED}/models/1001@2 to {NAMED}/endpoints/\d+: the quota of project my-project in "
        r"us-central1 is used up: The following quotas are exceeded: CustomModelServingCPUsPerProjectPerRegion\. .*"
        rf"The version is pushed to {version}\. Until it is deployed, the endpoint serves the previous version; a "
        r"rerun registers and deploys what is missing\.",
        str(raised.value),
    )
    [endpoint] = vertex.kept("/endpoints/").values()
    assert [one["modelVersionId"] for one in endpoint["deployedModels"]] == ["1"]
    vertex.requests()
    vertex.fail(0, {"code": 13, "message": "Internal error."}, method="none", operation="UndeployModel")
    with pytest.raises(CocoflowError, match="cannot undeploy version 1 from"):
        register(version, settings)
    register(version, settings)
    assert [path.rpartition(":")[2] for path, _ in _changes(vertex)] == [
        "deployModel",
        "undeployModel",
        "undeployModel",
    ]
    [endpoint] = vertex.kept("/endpoints/").values()
    assert [one["modelVersionId"] for one in endpoint["deployedModels"]] == ["2"]


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
    assert _versions(vertex, version) == [registered.model]


@pytest.mark.parametrize("status", UNANSWERED)
def test_an_endpoint_whose_answer_is_lost_is_reported(vertex: LoopbackVertex, status: int) -> None:
    settings = _settings("push.vertex.endpoint.name=digits")
    vertex.refuse(status, "The service is unavailable.", path="/endpoints$", after=True)
    version = _pushed(vertex, 17)
    with pytest.raises(CocoflowError, match=r"look for an endpoint named digits before you rerun the command\."):
        register(version, settings)
    registered = register(version, settings)
    assert list(vertex.kept("/endpoints/")) == [registered.endpoint]


def test_names_and_numbers(vertex: LoopbackVertex) -> None:
    first = register(_pushed(vertex, 17), _settings("push.vertex.endpoint.name=one"))
    number, endpoint = first.model.split("/")[-1].removesuffix("@1"), str(first.endpoint)
    other = ("push.vertex.display_name=other", f"push.vertex.parent_model={number}")
    second = register(
        _pushed(vertex, 18), _settings(*other, f"push.vertex.endpoint.name={endpoint.rsplit('/', maxsplit=1)[-1]}")
    )
    assert second == (f"{NAMED}/models/{number}@2", endpoint)
    full = f"push.vertex.parent_model={NAMED}/models/{number}"
    third = register(_pushed(vertex, 19), _settings(full, f"push.vertex.endpoint.name={endpoint}"))
    assert third == (f"{NAMED}/models/{number}@3", endpoint)
    [kept] = vertex.kept("/endpoints/").values()
    assert [one["modelVersionId"] for one in kept["deployedModels"]] == ["3"]


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


def test_a_deployment_that_takes_too_long(vertex: LoopbackVertex) -> None:
    settings = _settings("push.vertex.endpoint.name=digits", "push.vertex.endpoint.max_wait_minutes=1")
    endpoint = settings.options.endpoint.model_copy(update={"max_wait_minutes": 0.05})
    options = settings.options.model_copy(update={"endpoint": endpoint})
    vertex.fail(0, {}, method="none", operation="DeployModel")
    with pytest.raises(CocoflowError, match=r"cannot deploy .*: it is still running: .* It may have been done: look"):
        register(_pushed(vertex, 17), settings.model_copy(update={"options": options}))
