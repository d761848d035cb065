"""Connection to Vertex AI: clients, retries, and its errors in words.

The clients use REST, as Cloud Storage's does: they then obey HTTPS_PROXY and REQUESTS_CA_BUNDLE alike.
"""

import contextlib
import functools
import importlib
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

from schemas.errors import CocoflowError
from schemas.quoting import one_line

FIRST_DELAY = 1.0  # seconds before a request is repeated for the first time
_MAX_DELAY = 20.0
RETRY_SECONDS = 120.0  # that a request may be repeated for
TIMEOUT = 120.0  # seconds without an answer

Version = Literal["v1", "v1beta1"]
T = TypeVar("T")


class Place(NamedTuple):
    """Project and region of all resources."""

    project: str
    region: str

    @property
    def parent(self) -> str:
        """Resource name of the location."""
        return f"projects/{self.project}/locations/{self.region}"


class Connection:
    """Clients of one project and region.

    Args:
        project: Google Cloud project; None: that of the credentials.
        region: such as us-central1.

    Raises:
        CocoflowError: no credentials, or no project.
    """

    def __init__(self, project: str | None, region: str) -> None:
        self.place = Place(project or "", region)
        with self.explained("connect"):
            import google.auth
            from google.auth.transport.requests import AuthorizedSession

            # The library warns if these are a user's own; its advice does not fit a command line.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._credentials, found = google.auth.default(
                    scopes=["https://www.googleapis.com/auth/cloud-platform"]
                )
        if not (project or found):
            raise CocoflowError(
                "Vertex AI: the credentials name no project. Name one with --set run.vertex.project=PROJECT."
            )
        self.place = Place(project or str(found), region)
        self._session = AuthorizedSession(self._credentials)

    def client(self, service: str, version: Version = "v1") -> Any:
        """Returns a client of a service, such as "schedule_service"."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of its libraries, about their own future
            module = importlib.import_module(f"google.cloud.aiplatform_{version}.services.{service}")
        name = "".join(part.capitalize() for part in service.split("_")) + "Client"
        return getattr(module, name)(
            credentials=self._credentials,
            transport="rest",
            client_options={"api_endpoint": f"{self.place.region}-aiplatform.googleapis.com"},
        )

    def call(self, work: Callable[..., Any], what: str, /, **arguments: Any) -> Any:
        """Calls a client's method; repeats it while the service is unavailable.

        Args:
            work: the method.
            what: says what it does, for messages: "create the schedule mine".
            arguments: of the method.

        Raises:
            CocoflowError: see `explained`.
        """
        return self.repeated(lambda: work(**arguments, retry=None, timeout=TIMEOUT), what)

    def created(self, create: Callable[[], T], existing: Callable[[], T], what: str) -> T:
        """Creates a resource with an id that nobody else has.

        Args:
            create: creates it.
            existing: returns it if an earlier attempt's answer was lost.
            what: see `call`.

        Raises:
            CocoflowError: see `explained`.
        """
        from google.api_core import exceptions

        def attempt() -> T:
            try:
                return create()
            except exceptions.Conflict:
                return existing()

        return self.repeated(attempt, what)

    def listed(self, work: Callable[..., Any], what: str, /, **request: Any) -> list[Any]:
        """Returns what a client's method lists, of all pages; see `call`."""
        return list(self.repeated(lambda: list(work(request=request, retry=None, timeout=TIMEOUT)), what))

    def finished(self, operation: Any, what: str, *, minutes: float, result: Any = None) -> Any:
        """Waits for the end of a long-running operation, and returns its result.

        The clients' own wait asks for operations below /ui, which the documented REST surface does not have.

        Args:
            operation: as a client's method returned it.
            what: see `call`.
            minutes: how long it may take.
            result: message class of the result; None: it has none.

        Raises:
            CocoflowError: it failed, or takes longer.
        """
        from google.api_core import exceptions

        state, delay, end = operation.operation, FIRST_DELAY, time.monotonic() + minutes * 60
        while not state.done:
            if time.monotonic() >= end:
                raise CocoflowError(
                    f"Vertex AI: cannot {what}: not done after {minutes:g} minutes. It goes on there as {state.name}; "
                    "repeat the command later."
                )
            time.sleep(delay)
            delay = min(2 * delay, _MAX_DELAY)
            state = self.repeated(functools.partial(self._operation, state.name), what)
        if state.HasField("error"):
            with self.explained(what):
                raise exceptions.from_grpc_status(state.error.code, state.error.message)
        if result is None:
            return None
        message = result()
        state.response.Unpack(message._pb)
        return message

    def _operation(self, name: str) -> Any:
        """Returns the state of a long-running operation."""
        from google.api_core import exceptions
        from google.longrunning import operations_pb2
        from google.protobuf import json_format

        url = f"https://{self.place.region}-aiplatform.googleapis.com/v1/{name}"
        response = self._session.get(url, timeout=TIMEOUT)
        if response.status_code != 200:
            raise exceptions.from_http_response(response)
        return json_format.ParseDict(response.json(), operations_pb2.Operation(), ignore_unknown_fields=True)

    def repeated(self, work: Callable[[], T], what: str) -> T:
        """Does work that may be done twice; repeats it while the service is unavailable.

        Raises:
            CocoflowError: see `explained`.
        """
        with self.explained(what):
            done: T = _retry()(work)()
            return done

    @contextlib.contextmanager
    def explained(self, what: str) -> Iterator[None]:
        """Turns errors of the client and the service into ones that say what to do.

        Raises:
            CocoflowError: no credentials, no permission, no quota, no such resource, or no connection.
        """
        try:
            yield
        except CocoflowError:
            raise
        except Exception as error:
            reason = _explanation(error, self.place)
            if reason is None:
                raise
            raise CocoflowError(f"Vertex AI: cannot {what}: {reason}") from error


def _retry() -> Any:
    from google.api_core import exceptions, retry

    return retry.Retry(
        predicate=retry.if_exception_type(exceptions.ServiceUnavailable, exceptions.BadGateway),
        initial=FIRST_DELAY,
        maximum=_MAX_DELAY,
        timeout=RETRY_SECONDS,
    )


def _explanation(error: Exception, place: Place) -> str | None:
    """What happened and what to do; None: the error does not come from the service or the way to it."""
    import google.auth.exceptions as auth_errors
    import requests
    from google.api_core import exceptions as api_errors

    if isinstance(error, api_errors.RetryError) and isinstance(error.cause, Exception):
        return _explanation(error.cause, place)
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
