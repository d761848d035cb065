"""Registers a pushed version with Vertex AI's Model Registry.

The description of a registered version has the address of the pushed one, so that a rerun finds it instead of
uploading it again.
"""

import logging
from typing import Any, Self

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


def register(version: str, settings: Registration) -> str:
    """Registers a pushed version, unless it is registered.

    Args:
        version: folder of the pushed version.
        settings: project, names and container.

    Returns:
        Resource name with the version, projects/PROJECT/locations/REGION/models/ID@VERSION.

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
        return _Vertex(settings).register(version)
    except CocoflowError as error:
        raise CocoflowError(f"{error} The version is pushed to {version}; a rerun registers it.") from error


class _Vertex:
    """The registry of a project and region, by Vertex's SDK, which waits for each operation."""

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
        parent = options.parent_model or self._find()
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
                serving_container_image_uri=options.image or prebuilt_image(self._settings.region),
                serving_container_predict_route=options.predict_route,
                serving_container_health_route=options.health_route,
                serving_container_ports=None if options.port is None else [options.port],
                encryption_spec_key_name=self._settings.encryption_key,
                upload_request_timeout=_TIMEOUT,
            )
        _LOGGER.info("registered as %s", model.versioned_resource_name)
        return str(model.versioned_resource_name)

    def _find(self) -> str | None:
        """Returns the resource name of the model with the display name; None: no such model.

        Raises:
            CocoflowError: there are several.
        """
        name = self._settings.display_name
        escaped = name.replace("\\", "\\\\").replace('"', '\\"')
        with translate_errors(f"find {name} among the models", self._location):
            found = [str(one.resource_name) for one in self._sdk.Model.list(filter=f'display_name="{escaped}"')]
        if len(found) > 1:
            raise CocoflowError(
                f"Vertex AI: {len(found)} models are named {name}: {', '.join(found)}. Choose one with "
                "--set push.vertex.parent_model=ID."
            )
        return found[0] if found else None


def prebuilt_image(region: str) -> str:
    """Returns Vertex's own container of TensorFlow Serving for a region, for CPUs."""
    continent = _CONTINENTS.get(region.partition("-")[0], "us")
    return f"{continent}-docker.pkg.dev/vertex-ai/prediction/tf2-cpu.{_TENSORFLOW}:latest"
