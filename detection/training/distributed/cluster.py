"""Which machines train together, as TF_CONFIG or Vertex AI's CLUSTER_SPEC tells."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from schemas.errors import ConfigError

CLUSTER_VARIABLES = ("TF_CONFIG", "CLUSTER_SPEC")

# TensorFlow's own names (`master` is its older one for `chief`), and Vertex AI's pools in their documented order.
_ROLES = {
    "chief": "chief",
    "master": "chief",
    "worker": "worker",
    "ps": "ps",
    "evaluator": "evaluator",
    "workerpool0": "chief",
    "workerpool1": "worker",
    "workerpool2": "ps",
    "workerpool3": "evaluator",
}
_TRAINING_ROLES = ("chief", "worker")
_EXAMPLE = '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'


class Cluster(NamedTuple):
    """The processes that train together, and which of them this one is.

    addresses: `host:port` of each, by TensorFlow's task type: `chief` (one at most) and `worker`.
    task_type: this process's.
    task_index: its place among those of its type.
    """

    addresses: Mapping[str, Sequence[str]]
    task_type: str
    task_index: int

    @property
    def size(self) -> int:
        """Number of processes, >= 1."""
        return sum(map(len, self.addresses.values()))

    @property
    def is_chief(self) -> bool:
        """Whether this process is the one that writes: the chief, else the first worker."""
        return self.task_type == "chief" or (self.task_index == 0 and "chief" not in self.addresses)

    @property
    def others(self) -> list[str]:
        """Addresses of the other processes, chief first."""
        own = self.addresses[self.task_type][self.task_index]
        return [address for role in self.addresses for address in self.addresses[role] if address != own]


def cluster_from_environment(environment: Mapping[str, str]) -> Cluster | None:
    """The cluster that the first of `CLUSTER_VARIABLES` with a cluster tells of.

    Both hold JSON with `cluster`, lists of addresses by role, and `task`, this
    process's role (`type`) and place in its list (`index`); what else stands there
    (Vertex AI's `environment`, `job`, `trial`, `open_ports`) does not matter here.
    Parameter servers and evaluators take no part in synchronous training and are left
    out; a process that is one is refused.

    Args:
        environment: variables, such as `os.environ`.

    Returns:
        None where no variable tells of one.

    Raises:
        ConfigError: names the variable and what is wrong with it.
    """
    for variable in CLUSTER_VARIABLES:
        tree = _parse(variable, environment.get(variable, ""))
        if tree.get("cluster"):
            return _cluster(variable, tree)
    return None


def _parse(variable: str, text: str) -> dict[str, Any]:
    if not text.strip():
        return {}
    try:
        tree = json.loads(text)
    except json.JSONDecodeError as error:
        raise _error(variable, f"not JSON ({error})") from None
    if not isinstance(tree, dict):
        raise _error(variable, f"not a JSON object but {text.strip()[:60]!r}")
    return tree


def _cluster(variable: str, tree: Mapping[str, Any]) -> Cluster:
    task_type, index = _task(variable, tree.get("task"))
    if task_type not in _TRAINING_ROLES:
        raise ConfigError(
            f"{variable}: this process is a {task_type!r} task, which takes no part in training. Start training only "
            "on chief and workers (Vertex AI: the first two worker pools); the command `follow` evaluates beside it."
        )
    addresses = _addresses(variable, tree["cluster"])
    known = addresses.get(task_type, ())
    if not 0 <= index < len(known):
        raise _error(variable, f"task.index is {index}, but cluster has {len(known)} address(es) for {task_type!r}")
    return Cluster(addresses, task_type, index)


def _task(variable: str, task: Any) -> tuple[str, int]:
    if not isinstance(task, dict) or not {"type", "index"} <= task.keys():
        raise _error(variable, "there is a cluster, but no task with type and index, to tell which process this is")
    try:
        return _role(variable, task["type"]), int(task["index"])
    except (TypeError, ValueError):
        raise _error(variable, f"task.index is {task['index']!r}, not a number") from None


def _addresses(variable: str, cluster: Any) -> dict[str, list[str]]:
    if not isinstance(cluster, dict):
        raise _error(variable, "cluster is not an object with a list of addresses for each role")
    addresses: dict[str, list[str]] = {role: [] for role in _TRAINING_ROLES}
    for name, listed in cluster.items():
        role = _role(variable, name)
        if not isinstance(listed, list) or not all(_is_address(address) for address in listed):
            raise _error(variable, f"cluster.{name} is not a list of host:port addresses: {json.dumps(listed)}")
        if role in addresses:
            addresses[role] += listed
    everyone = [address for listed in addresses.values() for address in listed]
    twice = sorted({address for address in everyone if everyone.count(address) > 1})
    if twice:
        raise _error(variable, f"{', '.join(twice)} stands there twice; every process needs an address of its own")
    if len(addresses["chief"]) > 1:
        raise _error(variable, f"there are {len(addresses['chief'])} chiefs; one process leads")
    return {role: listed for role, listed in addresses.items() if listed}


def _role(variable: str, name: Any) -> str:
    if name not in _ROLES:
        raise _error(variable, f"{name!r} is no role; known are {', '.join(_ROLES)}")
    return _ROLES[name]


def _is_address(address: Any) -> bool:
    return isinstance(address, str) and bool(address.rpartition(":")[0]) and address.rpartition(":")[2].isdigit()


def _error(variable: str, fault: str) -> ConfigError:
    return ConfigError(f"{variable}: {fault}. A right one looks like {_EXAMPLE}; unset it to train on one machine.")
