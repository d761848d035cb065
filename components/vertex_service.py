"""Connection to Vertex AI: clients, and requests that are repeated.

The clients use REST, as Cloud Storage's does: they then obey HTTPS_PROXY and REQUESTS_CA_BUNDLE alike.
"""

import contextlib
import functools
import importlib
import logging
import warnings
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from components import retries
from components.vertex_errors import Place, translate_errors
from schemas.errors import CocoflowError

TIMEOUT = 120.0  # seconds without an answer

Version = Literal["v1", "v1beta1"]
T = TypeVar("T")

_LOGGER = logging.getLogger("cocoflow.vertex")


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

    def sent_once(self, send: Callable[[], T], found: Callable[[], T | None], what: str) -> T:
        """Sends a request that must not be carried out twice, and returns its result.

        If the answer is lost, the service may have accepted the request, and its result appears
        some time later.  So the result is looked for as long as other requests are repeated, and
        the request is sent again only if there is none.

        Args:
            send: sends the request and waits for its result.
            found: returns the result of an accepted request; None: there is none yet.
            what: see `call`.

        Raises:
            CocoflowError: see `explained`.
        """
        with self.explained(what):
            try:
                return send()
            except _unanswered() as error:
                _LOGGER.warning("Vertex AI: cannot %s: no answer (%s). Looking whether it was done.", what, error)
            for _ in retries.pauses(retries.RETRY_SECONDS):
                result = found()
                if result is not None:
                    return result
            return send()

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

        state, waits = operation.operation, retries.pauses(minutes * 60)
        while not state.done:
            if next(waits, None) is None:
                raise CocoflowError(
                    f"Vertex AI: cannot {what}: not done after {minutes:g} minutes. It goes on there as {state.name}; "
                    "repeat the command later."
                )
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
            return retries.repeated(work, is_temporary=_is_temporary)

    def explained(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Turns errors of the client and the service into ones that say what to do."""
        return translate_errors(what, self.place)


def _unanswered() -> tuple[type[Exception], ...]:
    """Returns the errors that leave open whether the service accepted a request."""
    import requests
    from google.api_core import exceptions

    return exceptions.ServiceUnavailable, exceptions.BadGateway, exceptions.GatewayTimeout, requests.RequestException


def _is_temporary(error: Exception) -> bool:
    from google.api_core import exceptions

    return isinstance(error, exceptions.ServiceUnavailable | exceptions.BadGateway)
