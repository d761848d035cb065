"""The section `push.vertex`: registration of pushed models with Vertex AI, and their deployment."""

from typing import Annotated

from pydantic import Field, PositiveInt

from schemas.config.image_reference import ImageReference
from schemas.config.labels import Labels
from schemas.config.section import Section

_ID = r"[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?"
Alias = Annotated[str, Field(pattern=r"^[a-z][a-zA-Z0-9-]{0,126}[a-z0-9]$")]


class EndpointConfig(Section):
    """Endpoint that serves the newest pushed model."""

    name: str | None = Field(
        None,
        min_length=1,
        max_length=128,
        coerce_numbers_to_str=True,
        description="display name, number or resource name of the endpoint; one with a new display name is created; "
        "none: no deployment",
    )
    machine_type: str = Field("n1-standard-4", min_length=1, description="machines that serve the model")
    accelerator: str | None = Field(
        None, pattern=r"^[A-Z0-9_]+$", description="type of each machine's accelerators, such as NVIDIA_L4"
    )
    accelerator_count: PositiveInt = Field(1, description="accelerators of each machine")
    min_replicas: PositiveInt = Field(1, description="machines that always run")
    max_replicas: PositiveInt = Field(1, description="machines under load")
    traffic_percent: PositiveInt = Field(
        100, le=100, description="share of requests for a new version; at 100, older versions are undeployed"
    )
    service_account: str | None = Field(None, description="account of the server; none: Vertex's own")
    max_wait_minutes: PositiveInt = Field(60, description="how long a deployment may take")

    def _check_keys(self) -> None:
        self.refuse(sorted(set(type(self).model_fields) - {"name"}), "without name", when=self.name is None)
        self.refuse(["accelerator_count"], "without accelerator", when=self.accelerator is None)
        if self.max_replicas < self.min_replicas:
            raise ValueError(f"max_replicas = {self.max_replicas} is less than min_replicas = {self.min_replicas}")


class VertexPushConfig(Section):
    """Vertex AI's Model Registry, in `run.vertex.project` and `run.vertex.region`."""

    model_registry: bool = Field(False, description="upload each pushed version to the Model Registry")
    display_name: str | None = Field(None, min_length=1, max_length=128, description="model name; none: run.name")
    parent_model: str | None = Field(
        None,
        coerce_numbers_to_str=True,
        pattern=rf"^(projects/[^/]+/locations/[^/]+/models/)?{_ID}$",
        description="id or resource name of the registered model for the versions; none: the model of this "
        "display name, or a new one",
    )
    image: ImageReference | None = Field(
        None,
        description="serving container; none: Vertex's prebuilt one of TensorFlow 2.15, for GPUs with an accelerator",
    )
    predict_route: str | None = Field(None, pattern="^/", description="path of predictions in image; none: Vertex's")
    health_route: str | None = Field(None, pattern="^/", description="path of health checks in image; none: Vertex's")
    port: PositiveInt | None = Field(None, lt=65536, description="port of image; none: 8080")
    version_aliases: tuple[Alias, ...] = Field(
        (), description="aliases that move to each new version, besides `default`: [champion]"
    )
    labels: Labels = Field({}, description="labels of the versions")
    endpoint: EndpointConfig = EndpointConfig()

    def _check_keys(self) -> None:
        if not self.model_registry:
            self.refuse(sorted(set(type(self).model_fields) - {"model_registry", "endpoint"}), "without model_registry")
            if self.endpoint.name is not None:
                raise ValueError("endpoint.name does nothing without model_registry")
        self.refuse(["predict_route", "health_route", "port"], "without image", when=self.image is None)
        if "default" in self.version_aliases:
            raise ValueError("version_aliases: each new version always gets `default`; remove it")
