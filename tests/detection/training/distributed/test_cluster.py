import json
from typing import Any

import pytest

from detection.training.distributed.cluster import Cluster, cluster_from_environment
from schemas.errors import ConfigError

TWO = {"worker": ["a:1", "b:2"]}


def _read(variable: str = "TF_CONFIG", **tree: Any) -> Cluster | None:
    return cluster_from_environment({variable: json.dumps(tree)})


def _task(kind: str, index: Any = 0) -> dict[str, Any]:
    return {"type": kind, "index": index}


@pytest.mark.parametrize("text", [None, "", "  ", "{}", '{"task": {"type": "worker", "index": 0}}', '{"cluster": {}}'])
def test_without_a_cluster_there_is_none(text: str | None) -> None:
    assert cluster_from_environment({} if text is None else {"TF_CONFIG": text}) is None


def test_tf_config_of_workers() -> None:
    cluster = _read(cluster=TWO, task=_task("worker", 1))
    assert cluster == Cluster({"worker": ["a:1", "b:2"]}, "worker", 1)
    assert cluster.size == 2
    assert cluster.others == ["a:1"]
    assert not cluster.is_chief
    first = _read(cluster=TWO, task=_task("worker", 0))
    assert first is not None
    assert first.is_chief


def test_the_chief_comes_first_whatever_the_order_in_the_text() -> None:
    cluster = _read(cluster=TWO | {"chief": ["c:3"]}, task=_task("worker", "0"))
    assert cluster == Cluster({"chief": ["c:3"], "worker": ["a:1", "b:2"]}, "worker", 0)
    assert cluster.others == ["c:3", "b:2"]
    assert not cluster.is_chief
    older = _read(cluster={"master": ["c:3"]}, task=_task("master"))
    assert older == Cluster({"chief": ["c:3"]}, "chief", 0)
    assert older.is_chief


def test_vertex_ai_pools_are_roles() -> None:
    """The form that Vertex AI's documentation shows, with all that it sets."""
    pools = {
        "workerpool0": ["cmle-training-workerpool0-ab-0:2222"],
        "workerpool1": ["cmle-training-workerpool1-ab-0:2222", "cmle-training-workerpool1-ab-1:2222"],
        "workerpool2": ["cmle-training-workerpool2-ab-0:2222"],
        "workerpool3": ["cmle-training-workerpool3-ab-0:2222"],
    }
    rest = {"environment": "cloud", "job": "{}", "open_ports": [3333]}
    for kind, index, role in (("workerpool0", 0, "chief"), ("workerpool1", 1, "worker")):
        cluster = _read("CLUSTER_SPEC", cluster=pools, task=_task(kind, index) | {"trial": "1"}, **rest)
        expected = {"chief": pools["workerpool0"], "worker": pools["workerpool1"]}
        assert cluster == Cluster(expected, role, index)
        assert cluster.size == 3


def test_a_single_machine_is_a_cluster_of_one() -> None:
    cluster = _read("CLUSTER_SPEC", cluster={"workerpool0": ["a:1"], "workerpool1": []}, task=_task("workerpool0"))
    assert cluster == Cluster({"chief": ["a:1"]}, "chief", 0)
    assert cluster.others == []


def test_tf_config_goes_before_cluster_spec_where_it_has_a_cluster() -> None:
    other = json.dumps({"cluster": {"workerpool0": ["z:1"]}, "task": _task("workerpool0")})
    both = {"TF_CONFIG": json.dumps({"cluster": TWO, "task": _task("worker")}), "CLUSTER_SPEC": other}
    first = cluster_from_environment(both)
    assert first is not None
    assert first.size == 2
    second = cluster_from_environment(both | {"TF_CONFIG": "{}"})
    assert second is not None
    assert second.addresses == {"chief": ["z:1"]}


@pytest.mark.parametrize("kind", ["ps", "evaluator"])
def test_who_takes_no_part_is_told_so(kind: str) -> None:
    with pytest.raises(ConfigError, match=f"^TF_CONFIG: this process is a '{kind}' task, which does not train"):
        _read(cluster=TWO, task=_task(kind))


def test_vertex_ai_s_evaluator_is_told_so() -> None:
    with pytest.raises(ConfigError, match=r"^CLUSTER_SPEC: this process is a 'evaluator' task.*the command `follow`"):
        _read("CLUSTER_SPEC", cluster={"workerpool0": ["a:1"]}, task=_task("workerpool3"))


@pytest.mark.parametrize(
    ("tree", "issue"),
    [
        ([1], r"not a JSON object but '\[1\]'"),
        ({"cluster": TWO}, "cluster without a task with the type and index"),
        ({"cluster": TWO, "task": {"type": "worker"}}, "without a task with the type and index"),
        ({"cluster": TWO, "task": "worker"}, "without a task with the type and index"),
        ({"cluster": TWO, "task": _task("worker", "x")}, "task.index is 'x', not a number"),
        ({"cluster": TWO, "task": _task("worker", float("inf"))}, "task.index is inf, not a number"),
        ({"cluster": TWO, "task": {"type": ["worker"], "index": 0}}, r"unknown role \['worker'\]; roles are"),
        ({"cluster": TWO, "task": _task("worker", None)}, "task.index is None, not a number"),
        (
            {"cluster": TWO, "task": _task("worker", 2)},
            r"task.index is 2, but cluster has 2 address\(es\) for 'worker'",
        ),
        ({"cluster": TWO, "task": _task("worker", -1)}, "task.index is -1"),
        ({"cluster": TWO, "task": _task("chief")}, r"task.index is 0, but cluster has 0 address\(es\) for 'chief'"),
        ({"cluster": TWO, "task": _task("leader")}, "unknown role 'leader'; roles are chief, master, worker"),
        ({"cluster": {"boss": ["a:1"]}, "task": _task("worker")}, "unknown role 'boss'"),
        ({"cluster": ["a:1"], "task": _task("worker")}, "cluster is not an object with a list of addresses"),
        ({"cluster": {"worker": "a:1"}, "task": _task("worker")}, "cluster.worker is not a list of host:port"),
        ({"cluster": {"worker": ["a"]}, "task": _task("worker")}, r'cluster.worker is not a list .*\["a"\]'),
        ({"cluster": {"worker": [":1"]}, "task": _task("worker")}, "cluster.worker is not a list"),
        ({"cluster": {"worker": [["a:1"]]}, "task": _task("worker")}, "cluster.worker is not a list"),
        ({"cluster": {"worker": ["a:1", "a:1"]}, "task": _task("worker")}, "duplicate address a:1"),
        ({"cluster": {"chief": ["a:1"], **TWO}, "task": _task("worker")}, "duplicate address a:1"),
        ({"cluster": {"chief": ["a:1", "b:1"]}, "task": _task("chief")}, "2 chiefs; specify one"),
    ],
)
def test_an_invalid_variable_is_named_with_its_issue_and_a_valid_one(tree: Any, issue: str) -> None:
    for variable in ("TF_CONFIG", "CLUSTER_SPEC"):
        with pytest.raises(ConfigError, match=rf'^{variable}: .*{issue}.*A valid example is \{{"cluster": '):
            cluster_from_environment({variable: json.dumps(tree)})


def test_what_is_not_json_is_said() -> None:
    with pytest.raises(ConfigError, match=r"^TF_CONFIG: not JSON \(Expecting .* column 2 \(char 1\)\)"):
        cluster_from_environment({"TF_CONFIG": "{'cluster': {}}"})


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, '{"cluster": %s}' % ("9" * 5000)])
def test_what_json_cannot_hold_is_told(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^TF_CONFIG: not JSON") as caught:
        cluster_from_environment({"TF_CONFIG": text})
    assert len(str(caught.value)) < 500
