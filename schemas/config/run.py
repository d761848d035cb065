"""The section `run`: folder of a run, and settings of its containers and workers."""

from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from schemas.config.beam_args import BeamArgs
from schemas.config.image_reference import ImageReference
from schemas.config.labels import Labels
from schemas.config.recurrence import ScheduleConfig
from schemas.config.section import Section

# Environment variable in the containers of a compiled pipeline: the assigned accelerator.
ACCELERATOR_VARIABLE = "COCOFLOW_ACCELERATOR"


class ResourcesConfig(Section):
    """Resources of the container of one component, in a compiled pipeline."""

    cpu: PositiveFloat | None = Field(None, description="CPUs; none: the platform's default")
    memory_gb: PositiveFloat | None = Field(None, description="memory in GB; none: the platform's default")
    accelerator: str | None = Field(
        None,
        min_length=1,
        description="type: on Vertex such as NVIDIA_L4, on Kubeflow the name of the resource, such as nvidia.com/gpu; "
        "training and evaluation fail if TensorFlow does not see it",
    )
    accelerator_count: PositiveInt = Field(1, description="number of accelerators")
    node_selector: dict[str, str] = Field(
        {}, description="labels of the nodes, Kubeflow only, as {cloud.google.com/gke-spot: 'true'}"
    )
    tolerations: tuple[dict[str, str], ...] = Field(
        (),
        description="taints of the nodes, Kubeflow only, as [{key: nvidia.com/gpu, operator: Exists}]: "
        "key, operator, value, effect",
    )
    retries: NonNegativeInt = Field(0, description="max retries of a failed task")
    retry_seconds: PositiveInt = Field(60, description="pause before the first retry; it doubles with each")

    def _check_keys(self) -> None:
        self.refuse(["accelerator_count"], "without accelerator", when=self.accelerator is None)
        self.refuse(["retry_seconds"], "while retries = 0", when=not self.retries)


class WorkerPoolConfig(Section):
    """Machines of one kind in a Vertex custom job."""

    machine_type: str | None = Field(None, min_length=1, description="such as g2-standard-8; none: no such machines")
    accelerator: str | None = Field(None, min_length=1, description="type of each machine's accelerators: NVIDIA_L4")
    accelerator_count: PositiveInt = Field(1, description="accelerators of each machine")
    tpu_topology: str | None = Field(None, min_length=1, description="topology of a TPU machine type, such as 2x2")
    replicas: PositiveInt = Field(1, description="number of machines")

    def _check_keys(self) -> None:
        if self.machine_type is None:
            self.refuse(["accelerator", "accelerator_count", "tpu_topology", "replicas"], "without machine_type")
        self.refuse(["accelerator_count"], "without accelerator", when=self.accelerator is None)


class TrainerJobConfig(Section):
    """A Vertex custom job that trains in place of the trainer's container."""

    chief: WorkerPoolConfig = WorkerPoolConfig()
    workers: WorkerPoolConfig = WorkerPoolConfig()
    strategy: Literal["standard", "spot", "flex_start"] = Field(
        "standard", description="capacity: on demand, spot (may be taken away), or flex_start (queued until available)"
    )
    max_wait_hours: PositiveFloat | None = Field(None, description="max wait for capacity; none: Vertex's default")
    persistent_resource: str | None = Field(None, min_length=1, description="id of a persistent resource to train on")

    @property
    def enabled(self) -> bool:
        """True if the trainer runs as a custom job."""
        return self.chief.machine_type is not None

    def _check_keys(self) -> None:
        if not self.enabled:
            if self.workers.machine_type is not None:
                raise ValueError("workers without a chief; set chief.machine_type")
            self.refuse(["strategy", "max_wait_hours", "persistent_resource"], "without chief.machine_type")
        if self.chief.replicas != 1:
            raise ValueError(f"chief.replicas = {self.chief.replicas}: one machine leads; add others as workers")


class PersistentResourceConfig(Section):
    """A Vertex persistent resource that runs the containers of the pipeline."""

    name: str | None = Field(
        None,
        pattern=r"^([^/]+|projects/[^/]+/locations/[^/]+/persistentResources/[^/]+)$",
        description="id, in the pipeline's project and region, or projects/PROJECT/locations/REGION/"
        "persistentResources/ID; none: machines on demand",
    )
    max_wait_minutes: NonNegativeFloat = Field(0.0, description="max wait of a task for free machines")
    on_timeout: Literal["fail", "on_demand"] = Field(
        "fail", description="after that, the task fails or runs on machines on demand"
    )

    def _check_keys(self) -> None:
        self.refuse(["max_wait_minutes", "on_timeout"], "without name", when=self.name is None)


class VertexConfig(Section):
    """Runs of the compiled pipeline on Vertex AI by `submit` and `schedule`."""

    project: str | None = Field(None, description="Google Cloud project; none: project of the credentials")
    region: str = Field("us-central1", pattern=r"^[a-z0-9-]+$", description="region of the pipeline and its tasks")
    service_account: str | None = Field(None, description="account of the tasks; none: the project's default")
    network: str | None = Field(
        None,
        pattern=r"^projects/[^/]+/global/networks/[^/]+$",
        description="network that the tasks are peered with: projects/PROJECT_NUMBER/global/networks/NAME; none: none",
    )
    reserved_ip_ranges: tuple[str, ...] = Field((), description="names of the address ranges of network to use")
    network_attachment: str | None = Field(
        None, min_length=1, description="network attachment of a Private Service Connect interface, instead of network"
    )
    encryption_key: str | None = Field(
        None,
        pattern=r"^projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+$",
        description="key of Cloud KMS for the pipeline, and registered models: "
        "projects/PROJECT/locations/REGION/keyRings/RING/cryptoKeys/KEY; none: Google's own",
    )
    labels: Labels = Field({}, description="labels of pipeline jobs, for search and billing, such as {team: vision}")
    caching: bool = Field(True, description="reuse results of equal tasks of earlier runs; false: run every task")
    failure_policy: Literal["slow", "fast"] = Field(
        "slow", description="after a failed task, start those that do not depend on it (slow) or none (fast)"
    )
    persistent_resource: PersistentResourceConfig = PersistentResourceConfig()
    trainer_job: TrainerJobConfig = TrainerJobConfig()

    def _check_keys(self) -> None:
        name = self.persistent_resource.name
        if name is not None and "/" not in name and self.project is None:
            raise ValueError(f"persistent_resource.name = {name} is an id of a project; set project")
        if self.network is None:
            self.refuse(["reserved_ip_ranges"], "without network")
        elif self.network_attachment is not None:
            raise ValueError("network and network_attachment are exclusive; remove one")
        if self.encryption_key is not None and self.encryption_key.split("/")[3] != self.region:
            place = self.encryption_key.split("/")[3]
            raise ValueError(f"encryption_key is in {place}; Vertex requires a key in region = {self.region}")


class KubeflowConfig(Section):
    """Runs of the compiled pipeline on Kubeflow Pipelines by `submit` and `schedule`."""

    host: str | None = Field(None, description="address of Kubeflow Pipelines; none: as found by its client")
    namespace: str | None = Field(None, description="namespace of the run, with several users; none: the client's")
    experiment: str | None = Field(None, min_length=1, description="experiment of the runs; none: run.name")
    credentials: Literal["client", "token", "service_account"] = Field(
        "client",
        description="client: as found by its client; token: a bearer token in the environment variable "
        "KUBEFLOW_TOKEN; service_account: the token that Kubernetes mounts into a pod",
    )
    service_account: str | None = Field(None, description="Kubernetes account of the tasks; none: Kubeflow's default")
    caching: bool = Field(True, description="reuse results of equal tasks of earlier runs; false: run every task")


class RunConfig(Section):
    """Folder and name of a run."""

    root: str = Field("runs/default", description="folder for all files of a run")
    name: str = Field("cocoflow", description="name of the pipeline")
    beam_args: BeamArgs = Field(
        (),
        description="options of the Beam pipelines inside the components; on the workers of a Dask cluster: "
        "`[--runner=dask, --dask_client_address=tcp://HOST:8786]`",
    )
    image: ImageReference | None = Field(
        None, description="container image of a compiled pipeline, with this installation"
    )
    resources: dict[str, ResourcesConfig] = Field(
        {}, description="resources by component of a compiled pipeline, such as DetectionTrainer"
    )
    vertex: VertexConfig = VertexConfig()
    kubeflow: KubeflowConfig = KubeflowConfig()
    schedule: ScheduleConfig = ScheduleConfig()
