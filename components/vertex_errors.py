"""Turns Vertex AI and network errors into messages with a remedy."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from schemas.errors import CocoflowError
from schemas.quoting import one_line

_LOG_IN = "Log in again with `gcloud auth application-default login`."
_NO_REGION = (
    "{region} is not a region of Vertex AI. Choose one of https://cloud.google.com/vertex-ai/docs/general/locations "
    "with --set run.vertex.region=REGION."
)
_DISABLED_API = (
    "the API {service} is disabled in project {project}. Enable it with `gcloud services enable {service} --project "
    "{project}`, wait a few minutes, and rerun the command."
)
_NO_SERVICE_ACCOUNT = (
    "{message}. Grant your account the role roles/iam.serviceAccountUser on run.vertex.service_account, and check that "
    "name."
)
_BY_STATUS = {
    400: "the service refuses the request: {message}.",
    401: "the service refuses the credentials: {message}. " + _LOG_IN,
    403: "permission denied in project {project} ({permission}): {message}. Check run.vertex.project, and grant the "
    "account roles/aiplatform.user: `gcloud projects add-iam-policy-binding {project} --member=user:ACCOUNT "
    "--role=roles/aiplatform.user`.",
    404: "{message} (project {project}, region {region}). Check the name, run.vertex.project and run.vertex.region.",
    409: "{message}. Choose another name, or rerun the command if someone else changed it meanwhile.",
    429: "the quota of project {project} in {region} is used up ({quota_metric}): {message}. Wait for other jobs, ask "
    "for more at https://console.cloud.google.com/iam-admin/quotas?project={project}, or choose another region with "
    "--set run.vertex.region=REGION.",
}
# Errors of connections that were not made, so that no request was sent.
_UNCONNECTED = ("NewConnectionError", "NameResolutionError", "ConnectTimeoutError", "CERTIFICATE_VERIFY_FAILED")


class VertexLocation(NamedTuple):
    """Project and region of all resources."""

    project: str
    region: str

    @property
    def parent(self) -> str:
        """Resource name of the location."""
        return f"projects/{self.project}/locations/{self.region}"

    @property
    def host(self) -> str:
        """Address of the service."""
        return f"{self.region}-aiplatform.googleapis.com"


@contextlib.contextmanager
def translate_errors(what: str, location: VertexLocation, *, look_for: str | None = None) -> Iterator[None]:
    """Turns errors of a client and the service into messages with a remedy.

    Args:
        what: what the requests do, for messages: "create the schedule mine".
        location: project and region of the resources.
        look_for: what to look for if it is unknown whether a request was carried out; None: a rerun is harmless.

    Raises:
        CocoflowError: no credentials, permission, quota, resource or connection.
    """
    try:
        yield
    except Exception as error:
        reason = _reason(error, location, look_for)
        if reason is None:
            raise
        raise CocoflowError(f"Vertex AI: cannot {what}: {reason}") from error


def _reason(error: Exception, location: VertexLocation, look_for: str | None) -> str | None:
    """Returns what happened and what to do; None: the error does not come from the service or the network."""
    import google.auth.exceptions as auth_errors
    import requests
    from google.api_core import exceptions as api_errors

    text = one_line(str(error.args[0] if error.args else error)[:300])
    lost = "" if look_for is None else f"It may have been done: look for {look_for} before you rerun the command."
    if isinstance(error, auth_errors.DefaultCredentialsError):
        return (
            "no credentials for Google Cloud. Log in with `gcloud auth application-default login`, or set "
            "GOOGLE_APPLICATION_CREDENTIALS to a key file."
        )
    if isinstance(error, auth_errors.RefreshError):
        return f"the credentials for Google Cloud are not valid any more: {text}. {_LOG_IN}"
    if isinstance(error, auth_errors.GoogleAuthError):  # the request waited for a token
        return _unreachable(str(error), location, "")
    if isinstance(error, requests.RequestException | ConnectionError):
        return _unreachable(str(error), location, lost)
    if isinstance(error, TimeoutError):  # waiting for an operation
        return f"it is still running: {text.rstrip('.')}. {lost}".rstrip()
    return _refusal(error, location, lost) if isinstance(error, api_errors.GoogleAPICallError) else None


def _unreachable(text: str, location: VertexLocation, lost: str) -> str:
    if location.host in text and "NameResolutionError" in text:
        return (
            f"the host {location.host} is not known. Check that {location.region} is a region of Vertex AI "
            "(--set run.vertex.region=REGION), and the network."
        )
    shown = one_line(text[:300])
    if lost and not any(name in text for name in _UNCONNECTED):
        return f"no response: {shown}. {lost}"
    return f"no connection: {shown}. Check the network and proxy, and rerun the command."


def _refusal(error: Any, location: VertexLocation, lost: str) -> str:
    status, details = int(error.code or 0), _details(error)
    message = _message(error, details)
    if status >= 500:
        remedy = lost or "Rerun the command later; https://status.cloud.google.com lists outages."
        return f"the service failed: {message} (status {status}). {remedy}"
    template = _BY_STATUS.get(status, "the service refuses the request: {message} (status {status}).")
    words = message.lower()
    region = location.region
    about_region = ("unsupported region", f"location {region} is not found", f"location {region} is not supported")
    # An unknown region's host answers with a page.
    if (status == 404 and "<html" in words) or (status <= 404 and any(phrase in words for phrase in about_region)):
        template = _NO_REGION
    elif details.get("reason") == "SERVICE_DISABLED":
        template = _DISABLED_API
    elif status == 403 and ("service_account" in message or "iam.serviceAccounts.actAs" in str(details)):
        template = _NO_SERVICE_ACCOUNT
    values = {"service": "aiplatform.googleapis.com", "permission": "", "quota_metric": ""} | details.get(
        "metadata", {}
    )
    filled = template.format_map({**values, **location._asdict(), "message": message, "status": status})
    return filled.replace(" ()", "")


def _details(error: Any) -> dict[str, Any]:
    """Returns the fields of the messages that describe the error, which are JSON over REST."""
    from google.protobuf import json_format

    merged: dict[str, Any] = {}
    for one in error.details:
        merged |= one if isinstance(one, Mapping) else json_format.MessageToDict(one)
    return merged


def _message(error: Any, details: Mapping[str, Any]) -> str:
    """Returns the service's own words, without the client's repetition of the request, and the fields it refuses."""
    try:
        text = error.response.json()["error"]["message"]
    except (AttributeError, KeyError, TypeError, ValueError):
        text = error.message
    fields = [
        ": ".join(filter(None, (one.get("field"), one["description"]))) for one in details.get("fieldViolations", ())
    ]
    return one_line("; ".join([str(text)[:500].rstrip("."), *fields])).rstrip(".")
