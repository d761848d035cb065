"""Errors of Vertex AI and of the way to it, in words that say what to do."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from schemas.quoting import one_line


class Place(NamedTuple):
    """Project and region of all resources."""

    project: str
    region: str

    @property
    def parent(self) -> str:
        """Resource name of the location."""
        return f"projects/{self.project}/locations/{self.region}"


def explanation(error: Exception, place: Place) -> str | None:
    """Returns what happened and what to do; None: the error does not come from the service or the way to it."""
    import google.auth.exceptions as auth_errors
    import requests
    from google.api_core import exceptions as api_errors

    if isinstance(error, auth_errors.DefaultCredentialsError):
        return (
            "no credentials for Google Cloud. Log in with `gcloud auth application-default login`, or set "
            "GOOGLE_APPLICATION_CREDENTIALS to a key file."
        )
    if isinstance(error, auth_errors.RefreshError):
        return (
            "the credentials for Google Cloud are not valid any more: "
            f"{one_line(error.args[0] if error.args else error)}. Log in again with `gcloud auth application-default "
            "login`."
        )
    if isinstance(error, auth_errors.GoogleAuthError | requests.RequestException | ConnectionError):
        return _unreachable(error, place)
    if isinstance(error, api_errors.GoogleAPICallError):
        return _refusal(error, place)
    return None


def _refusal(error: Any, place: Place) -> str:
    status = int(error.code or 0)
    if _is_about_the_region(error, status, place.region):
        return _unknown_region(place)
    explain = _BY_STATUS.get(status)
    if explain is not None:
        return explain(error, place)
    if status >= 500:
        return (
            f"the service failed, also on repeated requests: {_message(error)} (status {status}). "
            "Repeat the command later; https://status.cloud.google.com tells of outages."
        )
    return f"the service refuses the request: {_message(error)} (status {status})."


def _message(error: Any) -> str:
    """The service's own words, without the client's repetition of the request."""
    errors = getattr(error.response, "json", None)
    try:
        text = errors()["error"]["message"] if errors else error.message
    except (KeyError, TypeError, ValueError):
        text = error.message
    return one_line(str(text)[:500]).rstrip(".")


def _error_info(error: Any) -> Mapping[str, Any]:
    """Reason and metadata of the error; over REST, the library's own properties for them fail."""
    infos = (one for one in error.details if isinstance(one, Mapping) and "reason" in one)
    return next(infos, {})


def _is_about_the_region(error: Any, status: int, region: str) -> bool:
    message = str(error.message).lower()
    if status == 404 and "<html" in message:  # the host is nobody's
        return True
    phrases = ("unsupported region", f"location {region} is not found", f"location {region} is not supported")
    return status in (400, 403, 404) and any(phrase in message for phrase in phrases)


def _unknown_region(place: Place) -> str:
    return (
        f"{place.region} is not a region of Vertex AI. Choose one of "
        "https://cloud.google.com/vertex-ai/docs/general/locations with --set run.vertex.region=REGION."
    )


def _unreachable(error: Exception, place: Place) -> str:
    text = str(error)
    host = f"{place.region}-aiplatform.googleapis.com"
    if host in text and any(words in text for words in ("NameResolutionError", "Name or service not known")):
        return (
            f"the host {host} is not known. Check that {place.region} is a region of Vertex AI "
            "(--set run.vertex.region=REGION), and the network."
        )
    return f"no connection: {one_line(text[:300])}. Check the network and proxy, and repeat the command."


def _bad_request(error: Any, place: Place) -> str:
    violations = [
        f"{one['field']}: {one['description']}" if one.get("field") else one["description"]
        for detail in error.details
        if isinstance(detail, Mapping)
        for one in detail.get("fieldViolations", ())
    ]
    return f"the service refuses the request: {one_line('; '.join([_message(error), *violations]))}."


def _unauthenticated(error: Any, place: Place) -> str:
    return (
        f"the service refuses the credentials: {_message(error)}. Log in again with "
        "`gcloud auth application-default login`."
    )


def _forbidden(error: Any, place: Place) -> str:
    info = _error_info(error)
    told = info.get("metadata", {})
    if info.get("reason") == "SERVICE_DISABLED":
        service = told.get("service", "aiplatform.googleapis.com")
        return (
            f"the API {service} is disabled in project {place.project}. Enable it with `gcloud services enable "
            f"{service} --project {place.project}`, wait a few minutes, and repeat the command."
        )
    if "service_account" in _message(error) or "iam.serviceAccounts.actAs" in str(told):
        return (
            f"{_message(error)}. Grant your account the role roles/iam.serviceAccountUser on "
            "run.vertex.service_account, and check that name."
        )
    permission = f" ({told['permission']})" if "permission" in told else ""
    return (
        f"permission denied in project {place.project}{permission}: {_message(error)}. Check run.vertex.project, and "
        f"grant the account roles/aiplatform.user: `gcloud projects add-iam-policy-binding {place.project} "
        "--member=user:ACCOUNT --role=roles/aiplatform.user`."
    )


def _not_found(error: Any, place: Place) -> str:
    return (
        f"{_message(error)} (project {place.project}, region {place.region}). Check the name, run.vertex.project and "
        "run.vertex.region."
    )


def _conflict(error: Any, place: Place) -> str:
    return f"{_message(error)}. Choose another name, or repeat the command if another one changed it meanwhile."


def _quota(error: Any, place: Place) -> str:
    told = _error_info(error).get("metadata", {})
    limit = f" (limit {told['quota_metric']})" if "quota_metric" in told else ""
    return (
        f"the quota of project {place.project} in {place.region} is used up{limit}: {_message(error)}. Wait for other "
        f"jobs, ask for more at https://console.cloud.google.com/iam-admin/quotas?project={place.project}, or choose "
        "another region with --set run.vertex.region=REGION."
    )


_BY_STATUS: Mapping[int, Callable[[Any, Place], str]] = {
    400: _bad_request,
    401: _unauthenticated,
    403: _forbidden,
    404: _not_found,
    409: _conflict,
    429: _quota,
}
