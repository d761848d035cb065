"""Connection to Kubeflow Pipelines: its client, retries, and its errors in words."""

import contextlib
import io
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from components import retries
from schemas.config.run import KubeflowConfig
from schemas.errors import CocoflowError, ConfigError
from schemas.quoting import one_line

TOKEN_VARIABLE = "KUBEFLOW_TOKEN"
_TEMPORARY = (502, 503, 504)
_CONNECTION = re.compile(r"^\w+\(.*?\): ")  # urllib3 begins the reason with its connection's repr
T = TypeVar("T")


class KubeflowConnection:
    """The client of an installation.

    Attributes:
        client: kfp's own.

    Args:
        config: where and as whom.

    Raises:
        ConfigError: no token.
        CocoflowError: it cannot be reached, or refuses the credentials.
    """

    def __init__(self, config: KubeflowConfig) -> None:
        self._config = config
        with self._explained("connect"):
            self.client = _client(config)

    def repeated(self, work: Callable[[], T], what: str) -> T:
        """Does work that may be done twice; repeats it while the service is unavailable.

        Args:
            work: requests of the client.
            what: says what it does, for messages: "create the schedule mine".

        Raises:
            CocoflowError: it cannot be reached, or refused the requests.
        """
        # The client prints addresses, and warns of what does not concern a command line.
        with self._explained(what), contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return retries.repeated(work, is_temporary=_is_temporary)

    @contextlib.contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Turns errors of the client and the service into ones that say what to do."""
        try:
            yield
        except CocoflowError:
            raise
        except Exception as error:
            reason = _explanation(error, self._config)
            if reason is None:
                raise
            raise CocoflowError(f"Kubeflow Pipelines: cannot {what}: {reason}") from error


def _is_temporary(error: Exception) -> bool:
    import kfp_server_api

    return isinstance(error, kfp_server_api.ApiException) and error.status in _TEMPORARY


def _client(config: KubeflowConfig) -> Any:
    import kfp
    from kfp.client import ServiceAccountTokenVolumeCredentials

    class Client(kfp.Client):
        """The client, whose first request fails with its reason instead of a timeout."""

        def get_kfp_healthz(self, sleep_duration: int = 5) -> Any:
            return self._healthz_api.healthz_service_get_healthz()

    arguments: dict[str, Any] = {"host": config.host, "namespace": config.namespace or "kubeflow"}
    if config.credentials == "token":
        arguments["existing_token"] = os.environ.get(TOKEN_VARIABLE)
        if not arguments["existing_token"]:
            raise ConfigError(
                f"run.kubeflow.credentials = token: the environment variable {TOKEN_VARIABLE} is empty. Put the bearer "
                "token into it."
            )
    if config.credentials == "service_account":
        arguments["credentials"] = ServiceAccountTokenVolumeCredentials()
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Client(**arguments)


def _explanation(error: Exception, config: KubeflowConfig) -> str | None:
    """What happened and what to do; None: the error does not come from the service or the way to it."""
    import kfp_server_api
    import urllib3

    host = config.host or "the host that its client found"
    if isinstance(error, kfp_server_api.ApiException):
        return _refusal(error, host)
    if isinstance(error, urllib3.exceptions.HTTPError):
        reason = one_line(_CONNECTION.sub("", str(getattr(error, "reason", error)))[:400])
        if config.host is None:
            return (
                "run.kubeflow.host is not set, and this machine has no Kubeflow Pipelines of its own "
                f"({reason}). Name the address: --set run.kubeflow.host=https://HOST/pipeline."
            )
        return (
            f"no connection to {host}: {reason}. Check run.kubeflow.host, the network and, for a forwarded port, "
            "`kubectl port-forward`."
        )
    if isinstance(error, FileNotFoundError):
        return (
            f"no token of a service account at {error.filename}. Run inside of a pod with such a volume, set "
            "KF_PIPELINES_SA_TOKEN_PATH, or choose other run.kubeflow.credentials."
        )
    return None


def _refusal(error: Any, host: str) -> str:
    message = _message(error)
    if error.status in (401, 403):
        return (
            f"{host} refuses access: {message} (status {error.status}). Check run.kubeflow.credentials and the token, "
            "and the rights of its account in run.kubeflow.namespace."
        )
    if error.status == 404:
        return (
            f"{host} does not find it: {message}. Check the name, and that run.kubeflow.host is Kubeflow Pipelines 2."
        )
    if error.status == 429:
        return f"{host} has too many requests or runs: {message}. Repeat the command later."
    if error.status is not None and error.status >= 500:
        return (
            f"{host} failed, also on repeated requests: {message} (status {error.status}). Look at the pod "
            "ml-pipeline, and repeat the command."
        )
    return f"{host} refuses the request: {message} (status {error.status})."


def _message(error: Any) -> str:
    """The service's own words."""
    try:
        told = json.loads(error.body)
        text = told.get("message") or told.get("error") or error.reason
    except (AttributeError, TypeError, ValueError):
        text = error.body if isinstance(error.body, str) and error.body else error.reason
    return one_line(str(text)[:500]).rstrip(".")
