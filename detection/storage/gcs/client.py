"""Connection to Google Cloud Storage: client, credentials, retries, and its errors as messages."""

import contextlib
import functools
import http.client
import itertools
import json
import os
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from detection.storage.paths import split
from schemas.errors import DataError
from schemas.quoting import one_line

RETRY_SECONDS = 120.0  # max time to repeat a request
FIRST_DELAY = 0.5  # seconds before the first repetition
_MAX_DELAY = 20.0
_TIMEOUT = (20.0, 120.0)  # seconds without a connection, without a byte
REQUESTS = 8  # at a time, of one session's ten connections
_ATTEMPTS = 5  # to read a folder that is being written
_BATCH = 64
FILE_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
_METADATA_SERVER = "169.254.169.254"  # gives machines on Google Cloud their credentials
_METADATA_SECONDS = 1.0
_MESSAGE = re.compile(r'"message":\s*"((?:[^"\\]|\\.)*)"')
T = TypeVar("T")
R = TypeVar("R")


class ConflictError(DataError):
    """An object has another generation than expected: somebody else wrote or removed it."""


class AbsentError(DataError):
    """An object or bucket does not exist."""


class PastTheEndError(DataError):
    """A read begins after an object's last byte."""


@functools.cache
def client() -> Any:
    """Returns the client of this process; `client.cache_clear()` lets it read credentials and environment again."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # its libraries warn about their own future
        from google.cloud import storage

    if not os.environ.get("STORAGE_EMULATOR_HOST"):  # which needs no credentials
        require_credentials_file()
    return storage.Client(project=None)


os.register_at_fork(after_in_child=client.cache_clear)  # a child must not share the parent's connections


def options() -> dict[str, Any]:
    """Returns the options of every request: timeouts, which errors are temporary, and for how long it is repeated."""
    from google.cloud.storage.retry import DEFAULT_RETRY

    policy = DEFAULT_RETRY.with_delay(initial=FIRST_DELAY, maximum=_MAX_DELAY).with_timeout(RETRY_SECONDS)
    return {"timeout": _TIMEOUT, "retry": policy}


def in_parallel(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Returns `work` of every item, in order; several run at a time.

    Raises:
        Exception: the first one of `work`, after the items that had begun have ended; the rest is not begun
            if an item failed.
    """
    with ThreadPoolExecutor(REQUESTS, thread_name_prefix="storage") as pool:
        return list(pool.map(work, items))


def in_batches(work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yields `work` of every item, in order; several run at a time, and few are held in memory.

    Raises:
        Exception: see `in_parallel`.
    """
    rest = iter(items)
    while batch := list(itertools.islice(rest, _BATCH)):
        yield from in_parallel(work, batch)


def while_written(path: str, find: Callable[[], T], read: Callable[[T], R]) -> R:
    """Returns `read(find())`; calls both again if another process writes or removes the found objects meanwhile.

    Raises:
        DataError: others write all the time; or `find` or `read` raised it.
    """
    for attempt in range(_ATTEMPTS):
        found = find()
        try:
            return read(found)
        except (AbsentError, ConflictError):
            time.sleep(0.2 * 2**attempt)
    raise DataError(f"{path}: is being written. Wait for the writer to finish, then rerun.")


@contextlib.contextmanager
def explain_errors(path: str) -> Iterator[None]:
    """Turns the client library's errors into messages with a remedy.

    Raises:
        AbsentError: no such object or bucket.
        ConflictError: a generation differs.
        DataError: no credentials, no permission, no connection, or the service refused for another reason.
    """
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        translated = _translated(error, path)
        if translated is None:
            raise
        raise translated from error


def _translated(error: Exception, path: str) -> DataError | None:
    """The error for a user; None: it does not come from the service or the way to it."""
    import google.auth.exceptions as auth_errors
    import requests
    from google.api_core import exceptions as api_errors

    # Media requests raise the transfer library's errors, which differ between its versions.
    response = getattr(error, "response", None)
    status = getattr(error, "code", None) or getattr(response, "status_code", None)
    if isinstance(error, api_errors.RetryError) and error.cause is not None:
        return _translated(error.cause, path) or _unreachable(path, error.cause)
    if isinstance(error, auth_errors.DefaultCredentialsError | auth_errors.RefreshError):
        return DataError(
            f"{path}: no valid credentials for Google Cloud: {one_line(error.args[0] if error.args else error)} "
            "Run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to a key file."
        )
    if isinstance(error, auth_errors.GoogleAuthError | requests.RequestException | ConnectionError):
        return _unreachable(path, error)
    if type(error).__name__ == "DataCorruption":
        return DataError(f"{path}: the content was damaged on its way: {one_line(error)}. Rerun.")
    if status is None:
        return None
    return _refused(path, int(status), error)


def _refused(path: str, status: int, error: Exception) -> DataError:
    if status == 404:
        return absent(path)
    if status == 412:
        return ConflictError(f"{path}: another process wrote or removed this object meanwhile. Rerun.")
    if status == 416:
        return PastTheEndError(f"{path}: shorter than expected. Rerun.")
    message = str(getattr(error, "message", None) or error)
    quoted = _MESSAGE.search(message)  # in the JSON of the response
    reason = one_line(quoted[1] if quoted else message).rstrip(".")
    if status in (401, 403):
        return DataError(
            f"{path}: Cloud Storage refuses access: {reason} (status {status}). "
            f"Give the account the role Storage Object User on bucket {split(path)[0]}, or name another path."
        )
    if status == 429 or status >= 500:
        return _unreachable(path, error)
    return DataError(f"{path}: Cloud Storage refuses the request: {reason} (status {status}). Check the path.")


def _unreachable(path: str, error: BaseException) -> DataError:
    return DataError(
        f"{path}: Cloud Storage cannot be reached, also not by repeated requests: {one_line(error)}. "
        "Check the network and proxy, then rerun."
    )


def absent(path: str) -> AbsentError:
    """Returns the error for an object that does not exist."""
    return AbsentError(f"{path}: there is no such object. Check the path, and that bucket {split(path)[0]} exists.")


class Credentials(NamedTuple):
    """Where the credentials come from.

    source: path of their file, or a description.
    project: project that they name; None: no project.
    """

    source: str
    project: str | None


def find_credentials() -> Credentials | None:
    """Finds the credentials of this process; None: there are no credentials.

    Asks a machine on Google Cloud whether it is one, for a second at most; validity is not checked.

    Raises:
        DataError: their file is missing, or no credentials file.
    """
    require_credentials_file()
    if file := _credentials_file():
        return Credentials(file, _read_project(file))
    return Credentials("service account of this machine", None) if _has_metadata_server() else None


def require_credentials_file() -> None:
    """Requires that a file of credentials that exists is a JSON object, which Google's clients do not check.

    Raises:
        DataError: it is not.
    """
    file = _credentials_file()
    if file is None or not os.path.exists(file):
        return
    try:
        valid = isinstance(json.loads(Path(file).read_bytes()), dict)
    except (OSError, ValueError, RecursionError):
        valid = False
    if not valid:
        raise DataError(f"{file}: no valid credentials: expected a JSON object. Set {FILE_VARIABLE} to a key file.")


def _credentials_file() -> str | None:
    if given := os.environ.get(FILE_VARIABLE):
        return given
    folder = os.path.expanduser(os.environ.get("CLOUDSDK_CONFIG") or "~/.config/gcloud")
    file = os.path.join(folder, "application_default_credentials.json")
    return file if os.path.isfile(file) else None  # unlike `Path.is_file`, also for a name that is too long


def _read_project(file: str) -> str | None:
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError

    try:
        project: str | None = google.auth.load_credentials_from_file(file)[1]
    except (DefaultCredentialsError, OSError) as error:
        raise DataError(f"{file}: no valid credentials: {one_line(error.args[0])}") from None
    return project


def _has_metadata_server() -> bool:
    server = os.environ.get("GCE_METADATA_HOST", _METADATA_SERVER)
    try:
        with contextlib.closing(http.client.HTTPConnection(server, timeout=_METADATA_SECONDS)) as connection:
            connection.request("GET", "/", headers={"Metadata-Flavor": "Google"})
            return connection.getresponse().getheader("Metadata-Flavor") == "Google"
    except (OSError, http.client.HTTPException):
        return False
