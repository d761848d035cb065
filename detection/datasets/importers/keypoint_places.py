"""Places of keypoints within their category: by their names, or by the ids of a label map."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from detection.datasets.importers.classes import Named
from detection.datasets.importers.coco_geometry import Keypoints
from detection.datasets.importers.label_map import LabelMap
from detection.datasets.importers.survey import ShardSurvey
from schemas.quoting import first_of

_UNLABELLED = (0.0, 0.0)
_MOST = 3  # names in a message


class KeypointError(Exception):
    """Keypoints that do not fit their category."""


@dataclass(frozen=True)
class KeypointPlaces:
    """Positions of the keypoints of a category's objects.

    names: the category's names, in order.
    ids: of each name, its place among the keypoints of all categories, as the TF Object Detection API counts them in a
        label map; () if there are none.
    total: number of the keypoints of all categories, if there are ids.
    elsewhere: names of other categories' keypoints in the label map, which records may repeat for each object.
    by_position: keypoints without names are in the order of `names`, or of `ids`.
    """

    names: tuple[str, ...]
    ids: tuple[int, ...] = ()
    total: int = 0
    elsewhere: frozenset[str] = frozenset()
    by_position: bool = True

    def placed(self, points: Keypoints) -> Keypoints:
        """Returns an object's keypoints in the order of the category's names; without a label where one is missing.

        Raises:
            KeypointError: a labelled keypoint has a name that is not the category's, or two have one; or there are no
                names, and another number of keypoints than the category's.
        """
        if points.names:
            return self._rows(points, self._by_name(points))
        count = len(points.visibility)
        if self.ids and count == self.total:
            return self._rows(points, dict(enumerate(self.ids)))
        if self.ids and count == len(self.ids):
            return self._rows(points, {place: sorted(self.ids).index(one) for place, one in enumerate(self.ids)})
        if count == len(self.names) and self.by_position:
            return points
        if not self.by_position:
            raise KeypointError("keypoints without names, while other objects have them in different orders")
        raise KeypointError(f"{count} keypoints without names for the {len(self.names)} of the category")

    def _by_name(self, points: Keypoints) -> dict[int, int]:
        """Returns, by place in the category, the row of the object's keypoint."""
        labelled = [row for row, visible in enumerate(points.visibility) if visible > 0]
        names = [points.names[row] for row in labelled]
        unknown = [name for name in names if name not in self.names and name not in self.elsewhere]
        if unknown:
            raise KeypointError(
                f"keypoints {first_of(unknown, _MOST)}: the category has {first_of(list(self.names), _MOST)}"
            )
        twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
        if twice:
            raise KeypointError(f"keypoint {twice[0]} twice in one object")
        places = {name: place for place, name in enumerate(self.names)}
        return {places[name]: row for name, row in zip(names, labelled, strict=True) if name in places}

    def _rows(self, points: Keypoints, rows: Mapping[int, int]) -> Keypoints:
        """Returns one keypoint per name; those without a row are not labelled."""
        chosen = [rows.get(place) for place in range(len(self.names))]
        return Keypoints(
            [_UNLABELLED if row is None else points.fractions[row] for row in chosen],
            [0 if row is None else points.visibility[row] for row in chosen],
            self.names,
        )


def keypoint_places(
    surveys: Iterable[ShardSurvey], ids: Mapping[Named, int | None], label_map: LabelMap | None
) -> dict[int, KeypointPlaces]:
    """Returns the places by id of the categories whose objects have labelled keypoints.

    The names are those of the label map; or those of the records, the largest object first; or numbers, if records
    have none.
    """
    names_of: dict[int, dict[tuple[str, ...], int]] = {}
    for survey in surveys:
        for label, text, names, size in survey.keypoints:
            identity = ids[label, text]
            if identity is not None:
                kinds = names_of.setdefault(identity, {})
                kinds[names] = max(kinds.get(names, 0), size)
    known = {} if label_map is None else label_map.keypoints
    return {
        identity: _of_map(identity, known, label_map) if identity in known and label_map else _of_records(kinds)
        for identity, kinds in names_of.items()
    }


def _of_map(identity: int, known: Mapping[int, tuple[str, ...]], label_map: LabelMap) -> KeypointPlaces:
    all_ids = [place for ids in label_map.keypoint_ids.values() for place in ids]
    return KeypointPlaces(
        known[identity],
        ids=label_map.keypoint_ids.get(identity, ()),
        total=max(all_ids, default=-1) + 1,
        elsewhere=frozenset(name for other, names in known.items() if other != identity for name in names),
    )


def _of_records(kinds: Mapping[tuple[str, ...], int]) -> KeypointPlaces:
    named = sorted((names for names in kinds if names), key=len, reverse=True)
    if not named:
        return KeypointPlaces(tuple(f"point_{number}" for number in range(1, kinds[()] + 1)))
    names = tuple(dict.fromkeys(name for each in named for name in each))
    return KeypointPlaces(names, by_position=all(each == names[: len(each)] for each in named))
