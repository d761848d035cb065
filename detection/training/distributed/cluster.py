"""The training cluster, from TF_CONFIG or Vertex AI's CLUSTER_SPEC."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from schemas.errors import ConfigError
from schemas.quoting import first_of, quoted, quoted_json

CLUSTER_VARIABLES = ("TF_CONFIG", "CLUSTER_SPEC")

# TensorFlow's names (`master` is an older name of `chief`), and Vertex AI's pools in their documented order.
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
    """The processes of distributed training.

    addresses: `host:port` of each process, by TensorFlow's task type: `chief` (at most one) and `worker`.
    task_type: task type of this process.
    task_index: index of this process within its task type.
    """

    addresses: Mapping[str, Sequence[str]]
    task_type: str
    task_index: int

    @property
    def size(self) -> int:
        """The number of processes, >= 1."""
        return sum(map(len, self.addresses.values()))

    @property
    def is_chief(self) -> bool:
        """True if this process writes: the chief, or the first worker if there is no chief."""
        return self.task_type == "chief" or (self.task_index == 0 and "chief" not in self.addresses)

    @property
    def others(self) -> list[str]:
        """Addresses of the other processes, chief first."""
        own = self.addresses[self.task_type][self.task_index]
        return [address for role in self.addresses for address in self.addresses[role] if address != own]


def cluster_from_environment(environment: Mapping[str, str]) -> Cluster | None:
    """Reads the cluster from the first of `CLUSTER_VARIABLES` that specifies one.

    Both contain JSON with `cluster`, lists of addresses by role, and `task`, the role (`type`)
    of this process and its index in the list (`index`).  Other keys (Vertex AI's `environment`,
    `job`, `trial`, `open_ports`) are ignored.  Synchronous training has no parameter servers and
    evaluators: their addresses are ignored, and a process with such a role is refused.

    Args:
        environment: environment variables, such as `os.environ`.

    Returns:
        The cluster; None: no variable specifies one.

    Raises:
        ConfigError: a variable is invalid; the message names it.
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
    except (ValueError, RecursionError) as error:  # ValueError: not JSON, or an integer of thousands of digits
        raise _error(variable, f"not JSON ({error})") from None
    if not isinstance(tree, dict):
        raise _error(variable, f"not a JSON object but {text.strip()[:60]!r}")
    return tree


def _cluster(variable: str, tree: Mapping[str, Any]) -> Cluster:
    task_type, index = _task(variable, tree.get("task"))
    if task_type not in _TRAINING_ROLES:
        raise ConfigError(
            f"{variable}: this process is a {task_type!r} task, which does not train. Start training only on chief "
            "and workers (Vertex AI: the first two worker pools); the command `follow` evaluates during training."
        )
    addresses = _addresses(variable, tree["cluster"])
    known = addresses.get(task_type, ())
    if not 0 <= index < len(known):
        raise _error(variable, f"task.index is {index}, but cluster has {len(known)} address(es) for {task_type!r}")
    return Cluster(addresses, task_type, index)


def _task(variable: str, task: Any) -> tuple[str, int]:
    if not isinstance(task, dict) or not {"type", "index"} <= task.keys():
        raise _error(variable, "cluster without a task with the type and index of this process")
    try:
        return _role(variable, task["type"]), int(task["index"])
    except (TypeError, ValueError, OverflowError):
        raise _error(variable, f"task.index is {quoted(task['index'])}, not a number") from None


def _addresses(variable: str, cluster: Any) -> dict[str, list[str]]:
    if not isinstance(cluster, dict):
        raise _error(variable, "cluster is not an object with a list of addresses for each role")
    addresses: dict[str, list[str]] = {role: [] for role in _TRAINING_ROLES}
    for name, listed in cluster.items():
        role = _role(variable, name)
        if not isinstance(listed, list) or not all(_is_address(address) for address in listed):
            raise _error(variable, f"cluster.{name} is not a list of host:port addresses: {quoted_json(listed)}")
        if role in addresses:
            addresses[role] += listed
    everyone = [address for listed in addresses.values() for address in listed]
    duplicates = sorted({address for address in everyone if everyone.count(address) > 1})
    if duplicates:
        raise _error(variable, f"duplicate address {first_of(duplicates, 3)}; every process needs a separate one")
    if len(addresses["chief"]) > 1:
        raise _error(variable, f"{len(addresses['chief'])} chiefs; specify one")
    return {role: listed for role, listed in addresses.items() if listed}


def _role(variable: str, name: Any) -> str:
    if not isinstance(name, str) or name not in _ROLES:
        raise _error(variable, f"unknown role {quoted(name)}; roles are {', '.join(_ROLES)}")
    return _ROLES[name]


def _is_address(address: Any) -> bool:
    return isinstance(address, str) and bool(address.rpartition(":")[0]) and address.rpartition(":")[2].isdigit()


def _error(variable: str, issue: str) -> ConfigError:
    return ConfigError(f"{variable}: {issue}. A valid example is {_EXAMPLE}; unset it to train on one machine.")
