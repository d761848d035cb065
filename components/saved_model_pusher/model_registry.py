"""Registers a pushed version with Vertex AI's Model Registry, and deploys it to an endpoint.

A version of a registered model carries a label made from the address of the pushed version, so that
a repeated run, or a request whose answer was lost, finds it instead of uploading it again.
"""

import hashlib
import importlib
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from components.vertex_service import TIMEOUT, Connection
from detection.storage.paths import is_remote
from schemas.config.config import Config
from schemas.config.model_registry import VertexPushConfig
from schemas.config.section import Section
from schemas.errors import CocoflowError, ConfigError

PUSH_LABEL = "cocoflow-push"
_UPLOAD_MINUTES = 30.0
_CREATION_MINUTES = 10.0  # of an endpoint
_TENSORFLOW = "2-15"  # the newest of Vertex's prebuilt containers
_CONTINENTS = {"asia": "asia", "australia": "asia", "europe": "europe"}  # others: us

_LOGGER = logging.getLogger("cocoflow.pusher")


class Registration(Section):
    """What the pusher's container needs to know; an execution parameter, as JSON."""

    project: str
    region: str
    encryption_key: str | None
    display_name: str
    options: VertexPushConfig

    @classmethod
    def of(cls, config: Config) -> Self | None:
        """Returns the settings of a configuration; None: models are not registered."""
        options, vertex = config.push.vertex, config.run.vertex
        if not options.model_registry:
            return None
        return cls(
            project=str(vertex.project),
            region=vertex.region,
            encryption_key=vertex.encryption_key,
            display_name=options.display_name or config.run.name,
            options=options,
        )


class Registered(NamedTuple):
    """A registered version.

    model: resource name with the version, projects/PROJECT/locations/REGION/models/ID@VERSION.
    endpoint: resource name of the endpoint that serves it; None: it was not deployed.
    """

    model: str
    endpoint: str | None


def register(version: str, settings: Registration) -> Registered:
    """Registers a pushed version, unless it is registered, and deploys it, unless it is deployed.

    Args:
        version: folder of the pushed version.
        settings: where and how.

    Raises:
        ConfigError: the folder does not lie on Cloud Storage.
        CocoflowError: Vertex AI refused it, or cannot be reached; the version stays pushed.
    """
    if not is_remote(version):
        raise ConfigError(
            f"push.vertex.model_registry: Vertex AI reads models from Cloud Storage, and {version} is not there. Set "
            "push.directory, or the parameter push_directory, to a gs:// folder."
        )
    try:
        service = _Vertex(settings)
        model = service.registered(version) or service.upload(version)
        endpoint = None if settings.options.endpoint.name is None else service.deploy(model)
    except CocoflowError as error:
        raise CocoflowError(
            f"{error} The version is pushed to {version}, and what served before serves on; a repeated run registers "
            "and deploys what is missing."
        ) from error
    return Registered(model, endpoint)


class _Vertex:
    """The registry and the endpoints of a project and region."""

    def __init__(self, settings: Registration) -> None:
        self._settings = settings
        self._options = settings.options
        self._connection = Connection(settings.project, settings.region)
        self._parent = self._connection.place.parent
        self._models = self._connection.client("model_service")
        self._endpoints = self._connection.client("endpoint_service")
        self._types = importlib.import_module("google.cloud.aiplatform_v1.types")

    def registered(self, version: str) -> str | None:
        """Returns the registered version of a pushed one; None: there is none."""
        model = self._existing_model()
        if model is None:
            return None
        listed = self._connection.listed(self._models.list_model_versions, "list the model's versions", name=model)
        found = (one for one in listed if one.labels.get(PUSH_LABEL) == push_label(version))
        return next((f"{model}@{one.version_id}" for one in found), None)

    def upload(self, version: str) -> str:
        """Uploads a pushed version, once, and returns its resource name."""
        what = f"upload {version} to the Model Registry"
        parent_model = self._existing_model()
        request = {
            "parent": self._parent,
            "model": model_resource(version, self._settings),
            **({} if parent_model is None else {"parent_model": parent_model}),
        }

        def send() -> str:
            operation = self._models.upload_model(request=request, retry=None, timeout=TIMEOUT)
            result = self._types.UploadModelResponse
            answer = self._connection.finished(operation, what, minutes=_UPLOAD_MINUTES, result=result)
            return f"{answer.model}@{answer.model_version_id}"

        name = self._connection.sent_once(send, lambda: self.registered(version), what)
        _LOGGER.info("registered as %s", name)
        return name

    def deploy(self, model: str) -> str:
        """Deploys a registered version, and returns the endpoint's resource name."""
        endpoint, (number, version) = self._endpoint(), _id_and_version(model)
        # Resource names tell the project by its id or its number: only the last part compares.
        of_model = [one for one in endpoint.deployed_models if _id_and_version(one.model)[0] == number]
        same = next((one for one in of_model if one.model_version_id == version), None)
        if same is None:
            self._deploy(model, endpoint)
            serves_all = self._options.endpoint.traffic_percent == 100
        else:
            serves_all = endpoint.traffic_split.get(same.id) == 100
        if serves_all:
            self._undeploy([one for one in of_model if one is not same], endpoint)
        return str(endpoint.name)

    def _deploy(self, model: str, endpoint: Any) -> None:
        what, options = f"deploy {model} to {endpoint.name}", self._options.endpoint
        request = {
            "endpoint": endpoint.name,
            "deployed_model": deployed_model(model, self._settings),
            "traffic_split": divide_traffic(dict(endpoint.traffic_split), options.traffic_percent),
        }
        operation = self._connection.call(self._endpoints.deploy_model, what, request=request)
        self._connection.finished(operation, what, minutes=options.max_wait_minutes)
        _LOGGER.info("deployed to %s", endpoint.name)

    def _undeploy(self, older: list[Any], endpoint: Any) -> None:
        for one in older:
            what = f"undeploy version {one.model_version_id} from {endpoint.name}"
            operation = self._connection.call(
                self._endpoints.undeploy_model, what, endpoint=endpoint.name, deployed_model_id=one.id
            )
            self._connection.finished(operation, what, minutes=self._options.endpoint.max_wait_minutes)

    def _existing_model(self) -> str | None:
        """Returns the model that gets the version; None: a new one."""
        parent, name = self._options.parent_model, self._settings.display_name
        if parent is not None:
            return parent if "/" in parent else f"{self._parent}/models/{parent}"
        found = self._listed(self._models.list_models, f"find the model {name}", name)
        return _only([one.name for one in found], name, "models", "push.vertex.parent_model")

    def _endpoint(self) -> Any:
        name = str(self._options.endpoint.name)
        if name.startswith("projects/") or name.isdecimal():
            full = name if "/" in name else f"{self._parent}/endpoints/{name}"
            return self._connection.call(self._endpoints.get_endpoint, f"find the endpoint {name}", name=full)
        return self._named_endpoint(name) or self._new_endpoint(name)

    def _named_endpoint(self, name: str) -> Any:
        """Returns the endpoint of a name; None: there is none."""
        found = self._listed(self._endpoints.list_endpoints, f"find the endpoint {name}", name)
        full_name = _only([one.name for one in found], name, "endpoints", "push.vertex.endpoint.name")
        return None if full_name is None else found[0]

    def _new_endpoint(self, name: str) -> Any:
        what = f"create the endpoint {name}"
        endpoint = {"display_name": name, "labels": dict(self._options.labels)} | _encryption(self._settings)

        def send() -> Any:
            operation = self._endpoints.create_endpoint(
                parent=self._parent, endpoint=endpoint, retry=None, timeout=TIMEOUT
            )
            return self._connection.finished(operation, what, minutes=_CREATION_MINUTES, result=self._types.Endpoint)

        return self._connection.sent_once(send, lambda: self._named_endpoint(name), what)

    def _listed(self, work: Any, what: str, name: str) -> list[Any]:
        escaped = name.replace("\\", "\\\\").replace('"', '\\"')
        return self._connection.listed(work, what, parent=self._parent, filter=f'display_name="{escaped}"')


def model_resource(version: str, settings: Registration) -> dict[str, Any]:
    """Returns a version of a model as Vertex's `Model` takes it.

    Args:
        version: folder of the pushed version.
        settings: its names, labels and container.
    """
    options = settings.options
    container: dict[str, Any] = {"image_uri": options.image or prebuilt_image(settings)}
    routes = {"predict_route": options.predict_route, "health_route": options.health_route}
    container |= {key: route for key, route in routes.items() if route is not None}
    if options.port is not None:
        container["ports"] = [{"container_port": options.port}]
    return {
        "display_name": settings.display_name,
        "version_description": f"pushed to {version}",
        "version_aliases": ["default", *options.version_aliases],
        "labels": {**options.labels, PUSH_LABEL: push_label(version)},
        "artifact_uri": version,
        "container_spec": container,
    } | _encryption(settings)


def deployed_model(model: str, settings: Registration) -> dict[str, Any]:
    """Returns a registered version as Vertex's `DeployedModel` takes it.

    Args:
        model: resource name with the version.
        settings: machines of the endpoint.
    """
    options = settings.options.endpoint
    machine: dict[str, Any] = {"machine_type": options.machine_type}
    if options.accelerator is not None:
        machine |= {"accelerator_type": options.accelerator, "accelerator_count": options.accelerator_count}
    deployed: dict[str, Any] = {
        "model": model,
        "display_name": settings.display_name,
        "dedicated_resources": {
            "machine_spec": machine,
            "min_replica_count": options.min_replicas,
            "max_replica_count": options.max_replicas,
        },
    }
    return deployed | ({} if options.service_account is None else {"service_account": options.service_account})


def divide_traffic(current: Mapping[str, int], percent: int) -> dict[str, int]:
    """Returns the traffic split of a deployment; the new model's key is "0".

    >>> divide_traffic({"7": 100}, 100)
    {'0': 100}
    >>> divide_traffic({"7": 60, "8": 30, "9": 10}, 25)
    {'0': 25, '7': 45, '8': 23, '9': 7}

    Args:
        current: shares of the deployed models, which add up to 100, or none.
        percent: share of the new model; the others keep their proportions of the rest.
    """
    rest = 100 - percent if current else 0
    shares = {key: share * rest // 100 for key, share in current.items()}
    left = rest - sum(shares.values())
    by_remainder = sorted(current, key=lambda key: (-(current[key] * rest % 100), key))
    for key in by_remainder[:left]:
        shares[key] += 1
    return {"0": 100 - rest, **{key: share for key, share in shares.items() if share}}


def prebuilt_image(settings: Registration) -> str:
    """Returns Vertex's own container of TensorFlow Serving for the region and the endpoint's machines."""
    continent = _CONTINENTS.get(settings.region.partition("-")[0], "us")
    device = "cpu" if settings.options.endpoint.accelerator is None else "gpu"
    return f"{continent}-docker.pkg.dev/vertex-ai/prediction/tf2-{device}.{_TENSORFLOW}:latest"


def push_label(version: str) -> str:
    """Returns the value of the label by which a registered version is found again from the pushed one."""
    return hashlib.sha256(version.encode()).hexdigest()[:32]


def _id_and_version(model: str) -> tuple[str, str]:
    """Returns the last part of a model's resource name, and what follows its @."""
    number, _, version = model.rpartition("/")[2].partition("@")
    return number, version


def _encryption(settings: Registration) -> dict[str, Any]:
    key = settings.encryption_key
    return {} if key is None else {"encryption_spec": {"kms_key_name": key}}


def _only(names: list[str], name: str, kind: str, key: str) -> str | None:
    if len(names) > 1:
        raise CocoflowError(
            f"Vertex AI: {len(names)} {kind} are named {name}: {', '.join(names)}. Choose one with --set {key}=ID."
        )
    return names[0] if names else None
