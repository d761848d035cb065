"""What `compile` writes, held against the pipeline that it was made of; TFX takes 20 s to import: imported inside."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import pipeline_runner
from pipelines.runners.compiled import require_compilable
from schemas.config.config import Config
from schemas.config.config_io import load_config
from schemas.config.run import ACCELERATOR_VARIABLE
from schemas.config.runtime_parameters import RUNTIME_PARAMETERS
from schemas.errors import ConfigError

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
WHOLE = ("data.root=gs://bucket/data/{SPAN}", "data.window=3", "train.init.from_previous_model=true")
REMOTE = ("run.root=gs://bucket/run", "run.image=registry/cocoflow:1", "run.name=digits")
RESOURCES = (
    "run.resources.DetectionTrainer={cpu: 8, memory_gb: 30, retries: 3}",
    "run.resources.CocoExampleGen={memory_gb: 16}",
)
TARGETS = ("vertex", "kubeflow")
ACCELERATORS = {"vertex": "NVIDIA_L4", "kubeflow": "nvidia.com/gpu"}


def _config(*assignments: str) -> Config:
    return load_config(None, [*WHOLE, *REMOTE, *assignments])


class Compiled:
    """A compiled pipeline, read with kfp's own classes.

    job: of Vertex; None for Kubeflow.
    spec: the pipeline.
    deployment: its executors.
    platform: second document of a Kubeflow pipeline; None: there is none.
    """

    def __init__(self, text: str) -> None:
        from google.protobuf import json_format
        from kfp.pipeline_spec import pipeline_spec_pb2

        self.text = text
        spec, *platform = yaml.safe_load_all(text)
        self.job = None
        if "pipelineSpec" in spec:
            self.job = json_format.ParseDict(spec, pipeline_spec_pb2.PipelineJob())
            spec = spec["pipelineSpec"]
        self.spec = json_format.ParseDict(spec, pipeline_spec_pb2.PipelineSpec())
        self.deployment = json_format.ParseDict(spec["deploymentSpec"], pipeline_spec_pb2.PipelineDeploymentConfig())
        self.platform = json_format.ParseDict(platform[0], pipeline_spec_pb2.PlatformSpec()) if platform else None

    def container(self, name: str) -> Any:
        component = self.spec.components[self.task(name).component_ref.name]
        return self.deployment.executors[component.executor_label].container

    def task(self, name: str) -> Any:
        return self.spec.root.dag.tasks[name]


@pytest.fixture(scope="module", params=TARGETS)
def target(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="module")
def whole(target: Any) -> Compiled:
    return _compile(target)


def _compile(target: Any, *assignments: str) -> Compiled:
    from pipelines.runners.compiled import compile_pipeline

    return Compiled(compile_pipeline(_config(*assignments), target))


def _producers(components: Any) -> dict[str, dict[str, tuple[str, str]]]:
    """Node -> input -> its producer and the output's key."""
    return {
        node.id: {key: (channel.producer_component_id, channel.output_key) for key, channel in node.inputs.items()}
        for node in components
    }


def test_the_schema_is_the_targets(whole: Compiled, target: str) -> None:
    assert whole.spec.pipeline_info.name == "digits"
    if target == "vertex":
        assert whole.spec.schema_version == "2.0.0"
        assert whole.job is not None
        assert whole.job.runtime_config.gcs_output_directory == "gs://bucket/run/artifacts"
    else:
        assert whole.spec.schema_version == "2.1.0"
        assert whole.job is None


def test_every_task_is_a_node_with_its_inputs_outputs_and_parameters(whole: Compiled, target: str) -> None:
    from tfx.orchestration.data_types import RuntimeParameter
    from tfx.utils import name_utils

    from pipelines.pipeline import create_pipeline

    nodes = create_pipeline(_config(), compiled=True, custom_jobs=target == "vertex").components
    assert set(whole.spec.root.dag.tasks) == {node.id for node in nodes}
    assert {node.id for node in nodes} >= {"training_window", "model_to_start_from", "previous_blessed_model"}
    producers = _producers(nodes)
    for node in nodes:
        task, component = whole.task(node.id), whole.spec.components[node.id]
        given = {
            key: (one.task_output_artifact.producer_task, one.task_output_artifact.output_artifact_key)
            for key, one in task.inputs.artifacts.items()
        }
        assert given == producers[node.id]
        assert set(task.dependent_tasks) == {producer for producer, _ in given.values()}
        assert set(component.input_definitions.artifacts) == set(given)
        types = {key: yaml.safe_load(one.artifact_type.instance_schema) for key, one in _outputs(component).items()}
        assert {key: one["title"] for key, one in types.items()} == {
            key: f"tfx.{channel.type.TYPE_NAME}" for key, channel in node.outputs.items()
        }
        properties = {key: value for key, value in node.exec_properties.items() if value is not None}
        assert set(component.input_definitions.parameters) == set(task.inputs.parameters) == set(properties)
        for key, value in properties.items():
            parameter = task.inputs.parameters[key]
            if isinstance(value, RuntimeParameter):
                assert parameter.component_input_parameter == value.name
            else:
                assert _constant(parameter.runtime_value, target) == value
        container = whole.container(node.id)
        assert container.image == "registry/cocoflow:1"
        executor = name_utils.get_full_name(node.executor_spec.executor_class)
        assert list(container.args)[:4] == [
            "--executor_class_path",
            executor,
            "--json_serialized_invocation_args",
            "{{$}}",
        ]


def _outputs(component: Any) -> Mapping[str, Any]:
    return dict(component.output_definitions.artifacts)


def _constant(value: Any, target: str) -> Any:
    constant = value.constant_value if target == "vertex" else value.constant
    kind = constant.WhichOneof("value" if target == "vertex" else "kind")
    return getattr(constant, kind)


def test_the_graph_is_that_of_the_local_pipeline() -> None:
    from pipelines.pipeline import create_pipeline

    here, there = (_producers(create_pipeline(_config(), compiled=compiled).components) for compiled in (False, True))
    assert here == there
    assert here["training_window"] == {"newest": ("CocoExampleGen", "examples")}
    assert here["model_to_start_from"] == {"examples": ("training_window", "examples")}
    assert here["previous_blessed_model"] == {"candidate": ("DetectionTrainer", "model")}


def test_parameters_have_the_configurations_values(whole: Compiled) -> None:
    parameters = whole.spec.root.input_definitions.parameters
    assert set(parameters) == set(RUNTIME_PARAMETERS)
    if whole.job is not None:
        given = {
            name: getattr(value, value.WhichOneof("value"))
            for name, value in whole.job.runtime_config.parameters.items()
        }
    else:
        given = {
            name: getattr(one.default_value, one.default_value.WhichOneof("kind")) for name, one in parameters.items()
        }
        assert all(one.is_optional for one in parameters.values())
    assert given == {
        "data_root": "gs://bucket/data/{SPAN}",
        "data_span": "",
        "model_name": "efficientdet-d0",
        "train_steps": 0,  # auto
        "train_batch_size": 8,
        "evaluate_thresholds": "{absolute: {AP: 0.05}, improvement: {}, not_worse: auto, significant: []}",
        "push_directory": "gs://bucket/run/serving",
    }


def test_nothing_of_this_machine_is_in_it(whole: Compiled) -> None:
    for path in (str(ROOT), "site-packages", os.path.expanduser("~")):
        assert path not in whole.text
    assert "records.pbtxt" not in whole.text


def test_what_reads_more_than_its_inputs_is_not_cached(whole: Compiled, target: str) -> None:
    def uncached(compiled: Compiled) -> set[str]:
        return {name for name, task in compiled.spec.root.dag.tasks.items() if not task.caching_options.enable_cache}

    history = {"training_window", "model_to_start_from", "previous_blessed_model", "RunReport"}
    without_driver = set() if target == "vertex" else {"CocoExampleGen"}
    assert uncached(whole) == history | without_driver
    started = _compile(target, "train.init.checkpoint=gs://bucket/ckpt-1")
    assert uncached(started) == history | without_driver | {"DetectionTrainer"}
    hook = whole.container("CocoExampleGen").lifecycle.pre_cache_check
    assert list(hook.command) == ["python", "-m", "components.coco_example_gen.spans.kubeflow_driver"]
    assert list(hook.args)[:2] == ["--json_serialized_invocation_args", "{{$}}"]


def test_resources(target: str) -> None:
    accelerator = ACCELERATORS[target]
    gpus = [
        f"run.resources.DetectionTrainer.{key}={value}"
        for key, value in {"accelerator": accelerator, "accelerator_count": 2}.items()
    ]
    compiled = _compile(target, *RESOURCES, *gpus, "run.beam_args=[--runner=FlinkRunner]")
    trainer = compiled.container("DetectionTrainer")
    resources = trainer.resources
    assert (resources.cpu_limit, resources.memory_limit) == (8, 30)
    assert (resources.accelerator.type, resources.accelerator.count) == (accelerator, 2)
    assert [(variable.name, variable.value) for variable in trainer.env] == [(ACCELERATOR_VARIABLE, accelerator)]
    assert not compiled.container("CocoExampleGen").env
    assert compiled.container("CocoExampleGen").resources.memory_limit == 16
    assert not compiled.container("CocoEvaluator").HasField("resources")
    policy = compiled.task("DetectionTrainer").retry_policy
    assert (policy.max_retry_count, policy.backoff_duration.seconds, policy.backoff_factor) == (3, 60, 2)
    assert not compiled.task("CocoEvaluator").HasField("retry_policy")
    assert compiled.platform is None
    assert "--runner=FlinkRunner" in compiled.container("CocoEvaluator").args


@pytest.mark.parametrize("component", ["CocoExampleGen", "StatisticsGen", "CocoEvaluator"])
def test_components_run_in_memory_and_do_not_package_tfx(whole: Compiled, component: str) -> None:
    runner = "--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner"
    assert list(whole.container(component).args)[-2:] == [runner, "--sdk_container_image=registry/cocoflow:1"]


def test_workers_on_dataflow_get_the_image() -> None:
    def beam_args(*arguments: str) -> list[str]:
        joined = ", ".join(["--runner=DataflowRunner", *arguments])
        return list(_compile("vertex", f"run.beam_args=[{joined}]").container("CocoExampleGen").args)[4:]

    assert beam_args() == ["--runner=DataflowRunner", "--sdk_container_image=registry/cocoflow:1"]
    assert beam_args("--setup_file=/src/setup.py") == ["--runner=DataflowRunner", "--setup_file=/src/setup.py"]


def test_the_trainer_is_a_custom_job_on_vertex_alone() -> None:
    job = "run.vertex.trainer_job.chief={machine_type: g2-standard-8, accelerator: NVIDIA_L4}"
    there, container = (_compile(name, job).container("DetectionTrainer").args[1] for name in TARGETS)
    assert there == "components.detection_trainer.custom_job.Executor"
    assert container == "components.detection_trainer.executor.Executor"


PLACED = (
    "run.resources.DetectionTrainer={accelerator: nvidia.com/gpu, node_selector: {cloud.google.com/gke-spot: 'true'}, "
    "tolerations: [{key: nvidia.com/gpu, operator: Exists}]}"
)


def test_nodes_are_chosen_on_kubeflow_only() -> None:
    from google.protobuf import json_format

    platform = json_format.MessageToDict(_compile("kubeflow", PLACED).platform)
    executors = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    assert executors["DetectionTrainer_executor"] == {
        "nodeSelector": {"labels": {"cloud.google.com/gke-spot": "true"}},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    }
    with pytest.raises(ConfigError, match=r"run\.resources\.DetectionTrainer\.node_selector: Vertex has no nodes"):
        _compile("vertex", PLACED)


@pytest.mark.parametrize(("target", "other"), [("vertex", "kubeflow"), ("kubeflow", "vertex")])
def test_an_accelerator_of_the_other_target_is_refused(target: str, other: str) -> None:
    config = _config(f"run.resources.DetectionTrainer.accelerator={ACCELERATORS[other]}")
    refused = rf"accelerator = {ACCELERATORS[other]}: --runner {target} has no .* Set it to one such as "
    with pytest.raises(ConfigError, match=refused + ACCELERATORS[target]):
        require_compilable(config, target)
    require_compilable(_config(f"run.resources.DetectionTrainer.accelerator={ACCELERATORS[target]}"), target)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("run.image=null", "--runner vertex needs the image of the containers: --set run.image="),
        ("run.name=My_Run", "run.name = My_Run: a compiled pipeline is named with lower-case letters"),
        ("run.root=runs/mine", "run.root = runs/mine: the containers of a compiled pipeline do not share"),
        ("push.directory=serving", "push.directory = serving: the containers"),
        ("data.root=null", "no data set: give --data DIR"),
        (
            "run.resources.Trainer={cpu: 1}",
            r"run\.resources\.Trainer: no such component. The nearest is DetectionTrainer",
        ),
    ],
)
def test_what_cannot_be_compiled_is_refused(assignment: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _compile("vertex", assignment)


def test_a_file_of_another_ending_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "pipeline.yaml"
    assert pipeline_runner.main(["compile", "--runner", "vertex", "--output", str(output)]) == 2
    assert "a pipeline for vertex is a .json file" in capsys.readouterr().err
    assert not output.exists()


def test_every_process_compiles_the_same_bytes(tmp_path: Path) -> None:
    """Also without credentials, without a home folder and from an empty working folder."""
    flags = [part for assignment in (*WHOLE, *REMOTE, *RESOURCES) for part in ("--set", assignment)]
    names = ["pipeline.json", "pipeline.yaml"]
    commands = [["compile", "--runner", *one, *flags] for one in zip(TARGETS, ["--output"] * 2, names, strict=True)]
    here, there = tmp_path / "here", tmp_path / "there"
    for command in commands:
        assert pipeline_runner.main([part if part not in names else str(here / part) for part in command]) == 0
    there.mkdir()
    environment = {"PATH": os.defpath, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "7", "HOME": "/nonexistent"}
    # One process, as it imports TFX for ten seconds.
    code = f"import pipeline_runner; assert not any(map(pipeline_runner.main, {commands}))"
    subprocess.run([sys.executable, "-c", code], cwd=there, env=environment, check=True)
    assert [(here / name).read_bytes() for name in names] == [(there / name).read_bytes() for name in names]
    assert json.loads((here / names[0]).read_text())["labels"]["tfx_runner"] == "kubeflow_v2"
