"""Registers a pushed version with Vertex AI's Model Registry, and deploys it to an endpoint.

The description of a registered version has the address of the pushed one, so that a rerun finds it instead of
uploading it again.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Self

from components.vertex_errors import VertexLocation, translate_errors
from detection.storage.paths import is_remote
from schemas.config.config import Config
from schemas.config.model_registry import VertexPushConfig
from schemas.config.section import Section
from schemas.errors import CocoflowError, ConfigError

_TIMEOUT = 120.0  # seconds without a response to a request
_TENSORFLOW = "2-15"  # the newest of Vertex's prebuilt containers
_CONTINENTS = {"asia": "asia", "australia": "asia", "europe": "europe"}  # others: us

_LOGGER = logging.getLogger("cocoflow.pusher")


class Registration(Section):
    """Settings of a registration; an execution parameter of the pusher, as JSON."""

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
        settings: project, names, container and endpoint.

    Raises:
        ConfigError: the folder is not on Cloud Storage.
        CocoflowError: Vertex AI refused a request, or cannot be reached; the version stays pushed.
    """
    if not is_remote(version):
        raise ConfigError(
            f"push.vertex.model_registry: Vertex AI reads models from Cloud Storage, and {version} is not there. Set "
            "push.directory, or the parameter push_directory, to a gs:// folder."
        )
    try:
        vertex = _Vertex(settings)
        model = vertex.register(version)
        endpoint = None if settings.options.endpoint.name is None else vertex.deploy(model)
    except CocoflowError as error:
        raise CocoflowError(
            f"{error} The version is pushed to {version}. Until it is deployed, the endpoint serves the previous "
            "version; a rerun registers and deploys what is missing."
        ) from error
    return Registered(model, endpoint)


class _Vertex:
    """The registry and the endpoints of a project and region, by Vertex's SDK, which waits for each operation."""

    def __init__(self, settings: Registration) -> None:
        self._settings = settings
        self._options = settings.options
        self._location = VertexLocation(settings.project, settings.region)
        with translate_errors("connect", self._location):
            from google.cloud import aiplatform  # takes some seconds

            aiplatform.init(project=settings.project, location=settings.region)
        self._sdk: Any = aiplatform

    def register(self, version: str) -> str:
        """Returns the resource name of a pushed version in the registry; uploads it if it is missing."""
        options, description = self._options, f"pushed to {version}"
        parent = options.parent_model or self._find(self._sdk.Model, "models", "push.vertex.parent_model")
        if parent is not None:
            with translate_errors("list the model's versions", self._location):
                registry = self._sdk.models.ModelRegistry(parent)
                for one in registry.list_versions():
                    if one.version_description == description:
                        return f"{registry.model_resource_name}@{one.version_id}"
        look_for = f'a version with the description "{description}" in the Model Registry'
        with translate_errors(f"upload {version} to the Model Registry", self._location, look_for=look_for):
            model = self._sdk.Model.upload(
                display_name=self._settings.display_name,
                parent_model=parent,
                version_aliases=list(options.version_aliases),
                version_description=description,
                labels=dict(options.labels),
                artifact_uri=version,
                serving_container_image_uri=options.image or prebuilt_image(self._settings),
                serving_container_predict_route=options.predict_route,
                serving_container_health_route=options.health_route,
                serving_container_ports=None if options.port is None else [options.port],
                encryption_spec_key_name=self._settings.encryption_key,
                upload_request_timeout=_TIMEOUT,
            )
        _LOGGER.info("registered as %s", model.versioned_resource_name)
        return str(model.versioned_resource_name)

    def deploy(self, model: str) -> str:
        """Deploys a registered version, and returns the endpoint's resource name."""
        options, endpoint, (number, version) = self._options.endpoint, self._endpoint(), _id_and_version(model)
        with translate_errors(f"find the endpoint {options.name}", self._location):
            # Resource names have the project's id or its number: only the last part compares.
            of_model = [one for one in endpoint.list_models() if _id_and_version(one.model)[0] == number]
            same = next((one for one in of_model if one.model_version_id == version), None)
            traffic = dict(endpoint.traffic_split)
        if same is None:
            look_for, percent = "the model at the endpoint", options.traffic_percent if traffic else 100
            with translate_errors(f"deploy {model} to {endpoint.resource_name}", self._location, look_for=look_for):
                deploy = lambda: endpoint.deploy(  # noqa: E731
                    self._sdk.Model(model),
                    deployed_model_display_name=self._settings.display_name,
                    traffic_percentage=percent,
                    machine_type=options.machine_type,
                    min_replica_count=options.min_replicas,
                    max_replica_count=options.max_replicas,
                    accelerator_type=options.accelerator,
                    accelerator_count=options.accelerator and options.accelerator_count,
                    service_account=options.service_account,
                    deploy_request_timeout=_TIMEOUT,
                )
                _run_within(options.max_wait_minutes, deploy)
            _LOGGER.info("deployed to %s", endpoint.resource_name)
        if (options.traffic_percent if same is None else traffic.get(same.id)) == 100:
            for one in of_model:
                if one is not same:
                    what = f"undeploy version {one.model_version_id} from {endpoint.resource_name}"
                    with translate_errors(what, self._location):
                        endpoint.undeploy(one.id)
        return str(endpoint.resource_name)

    def _endpoint(self) -> Any:
        """Returns the endpoint of the name, number or resource name; creates one with a new name."""
        name = str(self._options.endpoint.name)
        if name.startswith("projects/") or name.isdecimal():
            found: str | None = name
        else:
            found = self._find(self._sdk.Endpoint, "endpoints", "push.vertex.endpoint.name", name)
        if found is not None:
            with translate_errors(f"find the endpoint {name}", self._location):
                return self._sdk.Endpoint(found)
        with translate_errors(f"create the endpoint {name}", self._location, look_for=f"an endpoint named {name}"):
            return self._sdk.Endpoint.create(
                display_name=name,
                labels=dict(self._options.labels),
                encryption_spec_key_name=self._settings.encryption_key,
                create_request_timeout=_TIMEOUT,
            )

    def _find(self, resource: Any, kind: str, key: str, name: str | None = None) -> str | None:
        """Returns the resource name of the one with a display name; None: there is none.

        Raises:
            CocoflowError: there are several.
        """
        name = name or self._settings.display_name
        escaped = name.replace("\\", "\\\\").replace('"', '\\"')
        with translate_errors(f"find {name} among the {kind}", self._location):
            found = [str(one.resource_name) for one in resource.list(filter=f'display_name="{escaped}"')]
        if len(found) > 1:
            raise CocoflowError(
                f"Vertex AI: {len(found)} {kind} are named {name}: {', '.join(found)}. Choose one with --set {key}=ID."
            )
        return found[0] if found else None


def _run_within(minutes: float, work: Callable[[], object]) -> None:
    """Runs work that waits without a limit of its own.

    Raises:
        TimeoutError: it has not ended in time.
    """
    errors: list[Exception] = []

    def run() -> None:
        try:
            work()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(minutes * 60)
    if thread.is_alive():
        raise TimeoutError(f"not done after {minutes:g} minutes")
    for error in errors:
        raise error


def prebuilt_image(settings: Registration) -> str:
    """Returns Vertex's own container of TensorFlow Serving for the region and the endpoint's machines."""
    continent = _CONTINENTS.get(settings.region.partition("-")[0], "us")
    device = "cpu" if settings.options.endpoint.accelerator is None else "gpu"
    return f"{continent}-docker.pkg.dev/vertex-ai/prediction/tf2-{device}.{_TENSORFLOW}:latest"


def _id_and_version(model: str) -> tuple[str, str]:
    """Splits a model's resource name into its id and its version, "" without one."""
    number, _, version = model.rpartition("/")[2].partition("@")
    return number, version
