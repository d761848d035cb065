"""The section `push.vertex`: registration of pushed models with Vertex AI."""

from typing import Annotated

from pydantic import Field, PositiveInt

from schemas.config.image_reference import ImageReference
from schemas.config.labels import Labels
from schemas.config.section import Section

_ID = r"[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?"
Alias = Annotated[str, Field(pattern=r"^[a-z][a-zA-Z0-9-]{0,126}[a-z0-9]$")]


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
        None, description="serving container; none: Vertex's prebuilt one of TensorFlow 2.15, for CPUs"
    )
    predict_route: str | None = Field(None, pattern="^/", description="path of predictions in image; none: Vertex's")
    health_route: str | None = Field(None, pattern="^/", description="path of health checks in image; none: Vertex's")
    port: PositiveInt | None = Field(None, lt=65536, description="port of image; none: 8080")
    version_aliases: tuple[Alias, ...] = Field(
        (), description="aliases that move to each new version, besides `default`: [champion]"
    )
    labels: Labels = Field({}, description="labels of the versions")

    def _check_keys(self) -> None:
        if not self.model_registry:
            self.refuse(sorted(set(type(self).model_fields) - {"model_registry"}), "without model_registry")
        self.refuse(["predict_route", "health_route", "port"], "without image", when=self.image is None)
        if "default" in self.version_aliases:
            raise ValueError("version_aliases: each new version always gets `default`; remove it")
