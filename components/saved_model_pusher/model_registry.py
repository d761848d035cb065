"""Registers a pushed version with Vertex AI's Model Registry, and deploys it to an endpoint.

A version of a registered model carries a label made from the address of the pushed version, so that
a rerun finds it instead of uploading it again.

The clients are the generated ones.  The SDK's `Endpoint.deploy` waits without a limit, and the SDK takes
twice as long to import.
"""

import contextlib
import hashlib
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from components.vertex_errors import Place, translate_errors
from detection.storage.paths import is_remote
from schemas.config.config import Config
from schemas.config.model_registry import VertexPushConfig
from schemas.config.section import Section
from schemas.errors import CocoflowError, ConfigError

PUSH_LABEL = "cocoflow-push"
_TIMEOUT = 120.0  # seconds without a response
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
        model = service.register(version)
        endpoint = None if settings.options.endpoint.name is None else service.deploy(model)
    except CocoflowError as error:
        raise CocoflowError(
            f"{error} The version is pushed to {version}. Until it is deployed, the endpoint serves the previous "
            "version; a rerun registers and deploys what is missing."
        ) from error
    return Registered(model, endpoint)


class _Vertex:
    """The registry and the endpoints of a project and region."""

    def __init__(self, settings: Registration) -> None:
        self._settings = settings
        self._options = settings.options
        self._place = Place(settings.project, settings.region)
        with self._errors("connect"):
            from google.cloud import aiplatform_v1

            options = {"api_endpoint": self._place.host}
            self._models: Any = aiplatform_v1.ModelServiceClient(client_options=options)
            self._endpoints: Any = aiplatform_v1.EndpointServiceClient(client_options=options)

    def register(self, version: str) -> str:
        """Returns the resource name of a pushed version in the registry; uploads it if it is missing."""
        options, label = self._options, push_label(version)
        model: str | None
        if options.parent_model is None:
            name = self._settings.display_name
            model = self._find(self._models.list_models, name, "models", "push.vertex.parent_model")
        else:
            model = _full_name(options.parent_model, f"{self._place.parent}/models")
        if model is not None:
            with self._errors("list the model's versions"):
                for one in self._models.list_model_versions(name=model, timeout=_TIMEOUT):
                    if one.labels.get(PUSH_LABEL) == label:
                        return f"{model}@{one.version_id}"
        resource = model_resource(version, self._settings)
        request = {"parent": self._place.parent, "parent_model": model, "model": resource}
        look_for = f"a version with the label {PUSH_LABEL}={label} in the Model Registry"
        with self._errors(f"upload {version} to the Model Registry", look_for):
            done = _result(self._models.upload_model, request, _UPLOAD_MINUTES)
        _LOGGER.info("registered as %s@%s", done.model, done.model_version_id)
        return f"{done.model}@{done.model_version_id}"

    def deploy(self, model: str) -> str:
        """Deploys a registered version, and returns the endpoint's resource name."""
        options, endpoint, (number, version) = self._options.endpoint, self._endpoint(), _id_and_version(model)
        # Resource names tell the project by its id or its number: only the last part compares.
        of_model = [one for one in endpoint.deployed_models if _id_and_version(one.model)[0] == number]
        same = next((one for one in of_model if one.model_version_id == version), None)
        if same is None:
            request = {
                "endpoint": endpoint.name,
                "deployed_model": deployed_model(model, self._settings),
                "traffic_split": divide_traffic(dict(endpoint.traffic_split), options.traffic_percent),
            }
            with self._errors(f"deploy {model} to {endpoint.name}", "the model at the endpoint"):
                _result(self._endpoints.deploy_model, request, options.max_wait_minutes)
            _LOGGER.info("deployed to %s", endpoint.name)
            serves_all = options.traffic_percent == 100
        else:
            serves_all = endpoint.traffic_split.get(same.id) == 100
        for one in of_model if serves_all else ():
            if one is not same:
                request = {"endpoint": endpoint.name, "deployed_model_id": one.id}
                with self._errors(f"undeploy version {one.model_version_id} from {endpoint.name}"):
                    _result(self._endpoints.undeploy_model, request, options.max_wait_minutes)
        return str(endpoint.name)

    def _endpoint(self) -> Any:
        """Returns the endpoint of the name, number or resource name; creates one with a new name."""
        name = str(self._options.endpoint.name)
        found: str | None
        if name.startswith("projects/") or name.isdecimal():
            found = _full_name(name, f"{self._place.parent}/endpoints")
        else:
            found = self._find(self._endpoints.list_endpoints, name, "endpoints", "push.vertex.endpoint.name")
        if found is not None:
            with self._errors(f"find the endpoint {name}"):
                return self._endpoints.get_endpoint(name=found, timeout=_TIMEOUT)
        resource = {
            "display_name": name,
            "labels": dict(self._options.labels),
            "encryption_spec": _encryption(self._settings),
        }
        with self._errors(f"create the endpoint {name}", f"an endpoint named {name}"):
            request = {"parent": self._place.parent, "endpoint": resource}
            return _result(self._endpoints.create_endpoint, request, _CREATION_MINUTES)

    def _find(self, list_all: Any, name: str, kind: str, key: str) -> str | None:
        """Returns the resource name of the one with a display name; None: there is none.

        Raises:
            CocoflowError: there are several.
        """
        escaped = name.replace("\\", "\\\\").replace('"', '\\"')
        request = {"parent": self._place.parent, "filter": f'display_name="{escaped}"'}
        with self._errors(f"find {name} among the {kind}"):
            found = [str(one.name) for one in list_all(request, timeout=_TIMEOUT)]
        if len(found) > 1:
            raise CocoflowError(
                f"Vertex AI: {len(found)} {kind} are named {name}: {', '.join(found)}. Choose one with --set {key}=ID."
            )
        return found[0] if found else None

    def _errors(self, what: str, look_for: str | None = None) -> contextlib.AbstractContextManager[None]:
        return translate_errors(what, self._place, look_for=look_for)


def _result(method: Any, request: Mapping[str, Any], minutes: float) -> Any:
    """Sends a request, and returns the result of the operation that it starts."""
    return method(request, timeout=_TIMEOUT).result(timeout=minutes * 60)


def model_resource(version: str, settings: Registration) -> dict[str, Any]:
    """Returns a version of a model as Vertex's `Model` takes it.

    Args:
        version: folder of the pushed version.
        settings: its names, labels and container.
    """
    options = settings.options
    return {
        "display_name": settings.display_name,
        "version_description": f"pushed to {version}",
        "version_aliases": ["default", *options.version_aliases],
        "labels": {**options.labels, PUSH_LABEL: push_label(version)},
        "artifact_uri": version,
        "container_spec": {
            "image_uri": options.image or prebuilt_image(settings),
            "predict_route": options.predict_route,
            "health_route": options.health_route,
            "ports": [] if options.port is None else [{"container_port": options.port}],
        },
        "encryption_spec": _encryption(settings),
    }


def deployed_model(model: str, settings: Registration) -> dict[str, Any]:
    """Returns a registered version as Vertex's `DeployedModel` takes it.

    Args:
        model: resource name with the version.
        settings: machines of the endpoint.
    """
    options = settings.options.endpoint
    return {
        "model": model,
        "display_name": settings.display_name,
        "service_account": options.service_account,
        "dedicated_resources": {
            "machine_spec": {
                "machine_type": options.machine_type,
                "accelerator_type": options.accelerator,
                "accelerator_count": options.accelerator and options.accelerator_count,
            },
            "min_replica_count": options.min_replicas,
            "max_replica_count": options.max_replicas,
        },
    }


def divide_traffic(current: Mapping[str, int], percent: int) -> dict[str, int]:
    """Returns the traffic split of a deployment; the new model's key is "0".

    >>> divide_traffic({"7": 100}, 100)
    {'0': 100}
    >>> divide_traffic({"7": 60, "8": 30, "9": 10}, 25)
    {'0': 25, '7': 46, '8': 22, '9': 7}

    Args:
        current: shares of the deployed models, which add up to 100, or none.
        percent: share of the new model.  The others keep their proportions of the rest, all but the largest rounded
            down.
    """
    shares = {key: share * (100 - percent) // 100 for key, share in current.items()}
    if shares:
        shares[max(shares, key=shares.__getitem__)] += 100 - percent - sum(shares.values())
    return {"0": percent if shares else 100, **{key: share for key, share in shares.items() if share}}


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


def _full_name(name: str, parent: str) -> str:
    """Returns the resource name of what is given by its id or its resource name."""
    return name if "/" in name else f"{parent}/{name}"


def _encryption(settings: Registration) -> dict[str, str] | None:
    key = settings.encryption_key
    return None if key is None else {"kms_key_name": key}
