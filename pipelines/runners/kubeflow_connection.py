"""Connection to Kubeflow Pipelines: its client, and its errors as messages with a remedy."""

import contextlib
import io
import json
import os
import re
import warnings
from collections.abc import Iterator
from typing import Any

from schemas.config.run import KubeflowConfig
from schemas.errors import CocoflowError, ConfigError
from schemas.quoting import one_line

TOKEN_VARIABLE = "KUBEFLOW_TOKEN"
_CONNECTION = re.compile(r"^\w+\(.*?\): ")  # urllib3 begins the reason with its connection's repr
_FOUND_HOST = "the host that its client found"
_NO_ACCESS = (
    "{host} refuses access: {message} (status {status}). Check run.kubeflow.credentials and the token, and the rights "
    "of its account in run.kubeflow.namespace."
)
_BY_STATUS = {
    401: _NO_ACCESS,
    403: _NO_ACCESS,
    404: "{host} does not find it: {message}. Check the name, and that run.kubeflow.host is Kubeflow Pipelines 2.",
    429: "{host} has too many requests or runs: {message}. Rerun the command later.",
}


def connect(config: KubeflowConfig) -> Any:
    """Returns kfp's own client.

    Args:
        config: where and as whom.

    Raises:
        ConfigError: no token.
        CocoflowError: no service at this address, or it refuses the credentials.
    """
    arguments: dict[str, Any] = {"host": config.host, "namespace": config.namespace or "kubeflow"}
    if config.credentials == "token":
        arguments["existing_token"] = os.environ.get(TOKEN_VARIABLE)
        if not arguments["existing_token"]:
            raise ConfigError(
                f"run.kubeflow.credentials = token: the environment variable {TOKEN_VARIABLE} is empty. Put the bearer "
                "token into it."
            )
    with translate_errors("connect", config):
        import kfp
        from kfp.client import ServiceAccountTokenVolumeCredentials

        class Client(kfp.Client):
            """The client, whose first request fails with its reason instead of a timeout."""

            def get_kfp_healthz(self, sleep_duration: int = 5) -> Any:
                return self._healthz_api.healthz_service_get_healthz()

        if config.credentials == "service_account":
            arguments["credentials"] = ServiceAccountTokenVolumeCredentials()
        return Client(**arguments)


@contextlib.contextmanager
def translate_errors(what: str, config: KubeflowConfig, *, look_for: str | None = None) -> Iterator[None]:
    """Turns errors of the client and the service into messages with a remedy; hides what the client prints.

    Args:
        what: what the requests do, for messages: "create the schedule mine".
        config: where the service is.
        look_for: what to look for if it is unknown whether a request was carried out; None: a rerun is harmless.

    Raises:
        CocoflowError: the service cannot be reached, or refused a request.
    """
    try:
        # The client prints addresses, and its warnings do not concern a command line.
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        reason = _reason(error, config, look_for)
        if reason is None:
            raise
        raise CocoflowError(f"Kubeflow Pipelines: cannot {what}: {reason}") from error


def _reason(error: Exception, config: KubeflowConfig, look_for: str | None) -> str | None:
    """Returns what happened and what to do; None: the error does not come from the service or the network."""
    import kfp_server_api
    import urllib3

    lost = "" if look_for is None else f"It may have been done: look for {look_for} before you rerun the command."
    host = config.host or _FOUND_HOST
    if isinstance(error, kfp_server_api.ApiException):
        status, message = error.status or 0, _message(error)
        if status >= 500:
            remedy = lost or "Look at the pod ml-pipeline, and rerun the command."
            return f"{host} failed: {message} (status {status}). {remedy}"
        text = _BY_STATUS.get(status, "{host} refuses the request: {message} (status {status}).")
        return text.format(host=host, message=message, status=status)
    if isinstance(error, urllib3.exceptions.HTTPError):
        return _unreachable(getattr(error, "reason", error), config.host, lost)
    if isinstance(error, FileNotFoundError):
        return (
            f"no token of a service account at {error.filename}. Run inside of a pod with such a volume, set "
            "KF_PIPELINES_SA_TOKEN_PATH, or choose other run.kubeflow.credentials."
        )
    return None


def _unreachable(error: Any, host: str | None, lost: str) -> str:
    import urllib3

    reason, name = one_line(_CONNECTION.sub("", str(error))[:400]), host or _FOUND_HOST
    unsent = isinstance(error, urllib3.exceptions.NewConnectionError | urllib3.exceptions.ConnectTimeoutError)
    if lost and not unsent:
        return f"{name} gave no response: {reason}. {lost}"
    if host is None:
        return (
            "run.kubeflow.host is not set, and this machine has no Kubeflow Pipelines of its own "
            f"({reason}). Name the address: --set run.kubeflow.host=https://HOST/pipeline."
        )
    return (
        f"no connection to {host}: {reason}. Check run.kubeflow.host, the network and, for a forwarded port, "
        "`kubectl port-forward`."
    )


def _message(error: Any) -> str:
    """Returns the service's own words."""
    try:
        content = json.loads(error.body)
        text = content.get("message") or content.get("error") or error.reason
    except (AttributeError, TypeError, ValueError):
        text = error.body if isinstance(error.body, str) and error.body else error.reason
    return one_line(str(text)[:500]).rstrip(".")
