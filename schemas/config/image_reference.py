"""References of container images."""

import re
from typing import Annotated

from pydantic import AfterValidator

# Source: the grammar of github.com/distribution/reference; the first of several parts may be a host.
_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::\d+)?/"
_NAME = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(rf"(?:{_HOST})?{_NAME}(?:/{_NAME})*(?::\w[\w.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?")


def _image(reference: str) -> str:
    if not _REFERENCE.fullmatch(reference):
        raise ValueError(
            f"{reference!r} is no image reference: [HOST[:PORT]/]path[:tag][@sha256:digest], the path in lower case, "
            "without a scheme and spaces"
        )
    return reference


ImageReference = Annotated[str, AfterValidator(_image)]
