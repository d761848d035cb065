"""Application default credentials, looked for where Google's clients do, but without their long waits."""

import contextlib
import http.client
import os
from typing import NamedTuple

from detection.storage.json_files import read_json
from schemas.errors import DataError
from schemas.quoting import one_line

FILE_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
_METADATA_SERVER = "169.254.169.254"  # gives machines on Google Cloud their credentials
_METADATA_SECONDS = 1.0


class Credentials(NamedTuple):
    """Where the credentials come from.

    source: path of their file, or a description.
    project: project that they name; None: no project.
    """

    source: str
    project: str | None


def find_credentials() -> Credentials | None:
    """Finds the credentials of this process; None: it has none.

    Asks a machine on Google Cloud whether it is one, for a second at most; validity is not checked.

    Raises:
        DataError: their file is missing, or no credentials file.
    """
    require_credentials_file()
    if file := _credentials_file():
        return Credentials(file, _read_project(file))
    return Credentials("service account of this machine", None) if _has_metadata_server() else None


def require_credentials_file() -> None:
    """Requires that the file of the credentials, if it is there, is a JSON object, which Google's clients do not check.

    Raises:
        DataError: it is not.
    """
    file = _credentials_file()
    if file is not None and os.path.exists(file) and not isinstance(read_json(file), dict):
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
