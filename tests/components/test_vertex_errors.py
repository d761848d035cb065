"""Errors over gRPC; `tests/pipelines/runners/test_vertex.py` has those over REST."""

from typing import Any

import pytest
from google.api_core import exceptions
from google.auth.exceptions import TransportError
from google.rpc import error_details_pb2 as details

from components.vertex_errors import VertexLocation, translate_errors
from schemas.errors import CocoflowError

PLACE = VertexLocation("mine", "us-central1")


def _translated(error: Exception, look_for: str | None = None) -> str:
    with pytest.raises(CocoflowError) as raised, translate_errors("upload it", PLACE, look_for=look_for):
        raise error
    return str(raised.value).removeprefix("Vertex AI: cannot upload it: ")


@pytest.mark.parametrize(
    ("error", "detail", "told"),
    [
        (
            exceptions.PermissionDenied,
            details.ErrorInfo(reason="SERVICE_DISABLED", metadata={"service": "x.googleapis.com"}),
            "the API x.googleapis.com is disabled in project mine. Enable it with `gcloud services enable "
            "x.googleapis.com --project mine`, wait a few minutes, and rerun the command.",
        ),
        (
            exceptions.InvalidArgument,
            details.BadRequest(field_violations=[{"field": "model.labels", "description": "is invalid"}]),
            "the service refuses the request: It is {bad}; model.labels: is invalid.",
        ),
        (
            exceptions.ResourceExhausted,
            details.ErrorInfo(metadata={"quota_metric": "cpus"}),
            "the quota of project mine in us-central1 is used up (cpus): It is {bad}. Wait for other jobs",
        ),
    ],
)
def test_the_details_are_read(error: Any, detail: Any, told: str) -> None:
    assert _translated(error("It is {bad}.", details=[detail])).startswith(told)


def test_a_lost_answer_is_reported_where_a_rerun_would_do_harm() -> None:
    for error in (exceptions.ServiceUnavailable("Busy."), exceptions.DeadlineExceeded("Busy."), TimeoutError("Busy.")):
        end = "Busy(?: \\(status 50[34]\\))?\\. It may have been done: look for it before you rerun the command\\.$"
        with pytest.raises(CocoflowError, match=end), translate_errors("upload it", PLACE, look_for="it"):
            raise error
    assert "look for" not in _translated(exceptions.ServiceUnavailable("Busy."))
    assert "look for" not in _translated(TransportError("No token."), "it")  # nothing was sent


def test_other_errors_pass() -> None:
    with pytest.raises(KeyError), translate_errors("upload it", PLACE):
        raise KeyError("bug")
