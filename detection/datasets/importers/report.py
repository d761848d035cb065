"""What a person should know about foreign records before they are used."""

from detection.datasets.importers import keys
from detection.datasets.importers.dialects import AUTOML, COCOFLOW, OD_API
from detection.datasets.importers.merging import Survey
from schemas import features

_NAMES = {
    COCOFLOW: "Cocoflow's own",
    AUTOML: "google/automl",
    OD_API: "TF Object Detection API",
}
_EXPECTED = {
    features.CLASS_LABEL: "labels",
    features.CLASS_TEXT: "texts of the labels",
    features.IS_CROWD: "crowd flags (taken as 0)",
    features.AREA: "areas (taken from the boxes)",
    features.HEIGHT: "heights (taken from the images)",
    features.WIDTH: "widths (taken from the images)",
    features.FILENAME: "file names (made from the ids)",
}


def dialect_report(survey: Survey) -> str:
    """A few lines: dialect, counts, keys, formats, where categories and ids come from, what is amiss."""
    lines = [
        f"dialect:    {_NAMES[survey.dialect]} ({survey.dialect})",
        f"records:    {survey.records} with {survey.objects} objects",
        f"categories: {len(survey.categories)}, from {survey.category_source}",
        f"image ids:  {_ids(survey)}",
        f"formats:    {_formats(survey)}",
        f"keys:       {', '.join(map(str, _keys(survey)))}",
    ]
    missing = [text for key, text in _EXPECTED.items() if key not in survey.keys]
    if missing and survey.dialect != COCOFLOW:
        lines.append(f"missing:    {', '.join(missing)}")
    if survey.extras:
        kept = [key if key.endswith(f"/{name}") else f"{key} as {name}" for key, name in survey.extras.items()]
        lines.append(f"kept too:   {', '.join(kept)}")
    lines += [f"problem:    {what}: {count}, first {where}" for what, (count, where) in survey.problems.items()]
    return "\n".join(lines)


def _ids(survey: Survey) -> str:
    if survey.dialect == COCOFLOW:
        return "those of the COCO entries"
    if survey.image_ids == "source":
        return f"those of {features.SOURCE_ID}"
    return f"1 to {survey.records} in the order of the records; {features.SOURCE_ID} has no number of its own for each"


def _formats(survey: Survey) -> str:
    readable = [f"{count} {name}" for name, count in survey.formats.items() if name]
    found = ", ".join([*readable, *(f"{count} unreadable" for name, count in survey.formats.items() if not name)])
    lies = [f"{count} {pair.replace(', ', ' called ')}" for pair, count in survey.claimed.items()]
    return found + (f"; of these {', '.join(lies)}" if lies else "")


def _keys(survey: Survey) -> list[str]:
    """The keys, with how many records have them where these are not all."""
    short = {key: key.removeprefix(keys.OBJECT_PREFIX) for key in survey.keys}
    return [f"{short[key]}" + ("" if count == survey.records else f" ({count})") for key, count in survey.keys.items()]
