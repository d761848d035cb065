"""Which images are analysed where there are more than asked for."""

from collections.abc import Iterable

from detection.datasets.sampling import key_hash


def sample_rank(image_id: int, seed: int) -> int:
    """The place of an image in the queue for a sample, 0 <= rank < 2^64: a hash of its id and the seed.

    The images of least rank are the sample, whatever the order they come in, so that
    several workers can each keep the least of theirs.
    """
    return key_hash(f"{seed}:{image_id}")


def sample_ids(image_ids: Iterable[int], count: int, seed: int) -> list[int]:
    """The ids of at most `count` images, ascending."""
    ids = sorted(image_ids, key=lambda image_id: (sample_rank(image_id, seed), image_id))
    return sorted(ids[:count])
