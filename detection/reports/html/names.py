"""Names from the data, as pages show them."""

import unicodedata

LONGEST_NAME = 100  # characters


def shown_name(name: str) -> str:
    """A name from the data as pages show it: no control characters, and not endless."""
    # Joiners and marks of direction stay: emoji and right-to-left scripts need them.
    clean = "".join("\ufffd" if unicodedata.category(letter) in {"Cc", "Cs"} else letter for letter in name)
    return clean if len(clean) <= LONGEST_NAME else f"{clean[: LONGEST_NAME - 1]}…"
