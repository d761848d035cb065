"""Copies of one picture: finds them in a data set, reports them, and moves them to one split."""

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from components.coco_example_gen.shards import SeenImage
from components.coco_example_gen.sources import CocoSource, ImageSource, copy_for_workers
from detection.datasets.annotations.annotation_file import index_annotations
from detection.datasets.annotations.coco_writer import CocoWriter
from detection.datasets.issues import Issue
from detection.datasets.readers.converted import process_folder
from detection.datasets.splits import SplitFiles
from detection.images.likeness import copies
from detection.storage import paths
from schemas.artifacts import EVAL_SPLIT, TRAIN_SPLIT
from schemas.config.issues import IssuePolicies, Policy
from schemas.quoting import one_line

Place = tuple[str, int]  # split and image id
Groups = Mapping[Place, str]  # the name of the group that an image belongs to, by name and by pixels


def find_groups(seen: Mapping[str, Sequence[SeenImage]]) -> dict[Place, str]:
    """Joins images whose names say that they are copies, and those whose pixels are equal or nearly so.

    Args:
        seen: the images of each split.

    Returns:
        For each image the first name of those that are joined.
    """
    images = [(split, image) for split, of_split in seen.items() for image in of_split]
    first: dict[str, int] = {}
    pairs = list(copies([image.thumbnail for _, image in images]))
    for number, (_, image) in enumerate(images):
        pairs += [(first.setdefault(key, number), number) for key in (f"name {image.group}", image.digest)]
    joined = list(range(len(images)))

    def top(number: int) -> int:
        while joined[number] != number:
            joined[number] = joined[joined[number]]
            number = joined[number]
        return number

    for one, other in pairs:
        low, high = sorted((top(one), top(other)), key=lambda number: images[number][1].group)
        joined[high] = low
    return {(split, image.image_id): images[top(number)][1].group for number, (split, image) in enumerate(images)}


def find_moves(splits: Mapping[str, SplitFiles], groups: Groups, policies: IssuePolicies) -> dict[Place, str]:
    """Returns the images that go to another split, so that no group has images in two.

    Groups of a set that is divided by hash go where the hash of the group's name says; those of splits with files of
    their own go to train, if `data.on_fault.image_leak` is `move`.

    Args:
        splits: the files of each split.
        groups: of all images.
        policies: policy of `image_leak`.
    """
    divided = all(files.hash_range and files.images for files in splits.values())
    if not divided and (policies.of("image_leak") != "move" or not all(files.images for files in splits.values())):
        return {}
    members: dict[str, list[Place]] = defaultdict(list)
    for place, group in groups.items():
        members[group].append(place)
    moves: dict[Place, str] = {}
    for group, places in members.items():
        there = {split for split, _ in places}
        if len(there) > 1:
            holds = (name for name, files in splits.items() if files.holds_name(group))
            target = next(holds) if divided else TRAIN_SPLIT if TRAIN_SPLIT in there else min(there)
            moves |= {place: target for place in places if place[0] != target}
    return moves


def moved(sources: Mapping[str, ImageSource], moves: Mapping[Place, str], work: str | Path) -> dict[str, ImageSource]:
    """Writes a COCO file for each split that loses or receives images; ids that are taken get new numbers.

    Args:
        sources: of each split; COCO files.
        moves: from `find_moves`.
        work: folder, seen by all workers.
    """
    result = dict(sources)
    folders = [paths.absolute(of_split.files.images or "") for of_split in sources.values()]
    root = paths.common_folder(folders) or folders[0]
    categories = {one["id"]: one for other in sources.values() for one in _categories(other)}
    for name in {name for (split, _), target in moves.items() for name in (split, target)}:
        own = sources[name]
        assert isinstance(own, CocoSource)
        places = [(name, image_id) for image_id in own.image_ids() if (name, image_id) not in moves]
        places += [place for place, target in moves.items() if target == name]
        file = str(process_folder() / f"moved-{uuid.uuid4().hex}.json")
        with CocoWriter(file) as writer:
            for entry, annotations in _renumber(sources, places, root):
                writer.add(entry, annotations, where=name)
            heads = own.annotations
            writer.finish({"info": heads.info, "licenses": heads.licenses, "categories": list(categories.values())})
        files = replace(
            own.files, annotations=copy_for_workers(file, work), images=root, keypoints=None, hash_range=None, every=1
        )
        result[name] = CocoSource(files, index_annotations(file, shown=own.path, group=files.group))
    return result


def _categories(source: ImageSource) -> Sequence[Mapping[str, Any]]:
    return source.annotations.categories if isinstance(source, CocoSource) else ()


def _renumber(
    sources: Mapping[str, ImageSource], places: Sequence[Place], root: str
) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    taken: tuple[set[int], set[int]] = (set(), set())
    highest = [0, 0]

    def free(kind: int, identity: int) -> int:
        number = identity if identity not in taken[kind] else highest[kind] + 1
        highest[kind] = max(highest[kind], number)
        taken[kind].add(number)
        return number

    by_split: dict[str, list[int]] = defaultdict(list)
    for split, image_id in places:
        by_split[split].append(image_id)
    for split, image_ids in by_split.items():
        source = sources[split]
        assert isinstance(source, CocoSource)
        folder = paths.absolute(source.files.images or "")
        below = paths.relative(folder, root) if folder != root else ""
        with source.entries() as read:
            for image_id in image_ids:
                entry, annotations = read(image_id)
                number = free(0, entry["id"])
                name = f"{below}/{entry['file_name']}".lstrip("/") if below else entry["file_name"]
                yield (
                    entry | {"id": number, "file_name": name},
                    [one | {"id": free(1, one["id"]), "image_id": number} for one in annotations],
                )


def judge_copies(
    seen: Mapping[str, Sequence[SeenImage]], groups: Groups, policies: IssuePolicies
) -> tuple[dict[str, list[Issue]], list[str]]:
    """Finds images with the same pixels in their split, and images with a copy in another split.

    The first copy is that of the lowest id in a split; across splits that of eval, with train last, so that dropping
    never makes an evaluation smaller.

    Args:
        seen: the images of each split.
        groups: of all images.
        policies: policies of `image_duplicate` and `image_leak`.

    Returns:
        The issues of each split, in the order of image ids; and what is said about copies, a sentence each.
    """
    order = sorted(seen, key=lambda name: (name == TRAIN_SPLIT, name != EVAL_SPLIT, name))
    leak: Policy = (
        "keep" if policies.of("image_leak") == "move" else policies.of("image_leak")
    )  # what could not be moved
    equal: dict[str, tuple[str, SeenImage]] = {}  # by digest, the first one
    alike: dict[str, tuple[str, SeenImage]] = {}  # by group
    issues: dict[str, list[Issue]] = {name: [] for name in seen}
    for split in order:
        for image in sorted(seen[split]):
            same = equal.setdefault(image.digest, (split, image))
            copy = alike.setdefault(groups[split, image.image_id], (split, image))
            if same[1] is image and copy[0] == split:
                continue
            other_split, other = copy if same[1] is image else same
            what = "a copy, by its name or its pixels, of" if same[1] is image else "the same pixels as"
            message = (
                f"{what} {other_split}: {one_line(other.file_name)} (image {other.image_id}). "
                "Remove one of them, or join their annotations."
            )
            kind, policy = (
                ("image_duplicate", policies.of("image_duplicate")) if other_split == split else ("image_leak", leak)
            )
            issues[split].append(
                Issue(kind, policy, f"{split}: {one_line(image.file_name)}", image.image_id, None, message)
            )
    return issues, _notes(seen, groups)


def _notes(seen: Mapping[str, Sequence[SeenImage]], groups: Groups) -> list[str]:
    notes, sizes = [], Counter(groups.values())
    if len(sizes) < len(groups):
        most = max(sizes.values())
        notes.append(f"{len(groups):,} images are {len(sizes):,} pictures, up to {most} copies of one")
    trained = {groups[TRAIN_SPLIT, image.image_id] for image in seen.get(TRAIN_SPLIT, ())}
    for split in seen.keys() - {TRAIN_SPLIT}:
        copied = sum(groups[split, image.image_id] in trained for image in seen[split])
        if copied:
            notes.append(
                f"{copied:,} of {len(seen[split]):,} images of {split} have copies in {TRAIN_SPLIT}, so its metrics "
                f"are too high: --set data.on_fault.image_leak=move brings them to {TRAIN_SPLIT}, =drop leaves the "
                "copies out"
            )
    return notes
