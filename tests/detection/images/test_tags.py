"""Places of tags beside boxes."""

import itertools

import numpy as np
from PIL import Image

from detection.images.tags import Rectangle, draw_tags, frame_of, place_tags, shorten

PICTURE = (200.0, 100.0)


def test_overlap_is_the_common_area() -> None:
    assert Rectangle(0, 0, 10, 10).overlap(Rectangle(6, 7, 20, 20)) == 12
    assert Rectangle(0, 0, 10, 10).overlap(Rectangle(10, 0, 20, 10)) == 0
    assert Rectangle(2, 3, 7, 5).area == 10


def test_a_frame_is_cut_to_the_picture() -> None:
    assert frame_of([-5, -6, 20, 30], *PICTURE) == (0, 0, 15, 24)
    assert frame_of([190, 90, 50, 50], *PICTURE) == (190, 90, 200, 100)
    assert frame_of([500, 500, 5, 5], *PICTURE) == (199, 99, 200, 100)
    assert frame_of([50, 40, 0, 0], *PICTURE) == (50, 40, 51, 41)


def test_a_tag_stands_above_its_frame_or_where_there_is_room() -> None:
    frames = [Rectangle(20, 30, 60, 70), Rectangle(100, 0, 150, 50), Rectangle(180, 60, 200, 90)]
    assert place_tags(frames, [30, 30, 30], 10, PICTURE) == [(20, 20, 50, 30), (100, 50, 130, 60), (170, 50, 200, 60)]


def test_a_tag_stands_beside_a_frame_of_the_picture_s_height_and_inside_one_of_all_of_it() -> None:
    assert place_tags([Rectangle(20, 0, 60, 100)], [30], 10, PICTURE) == [(60, 0, 90, 10)]
    assert place_tags([Rectangle(0, 0, 200, 100)], [30], 10, PICTURE) == [(0, 0, 30, 10)]


def test_a_tag_does_not_cover_a_small_object() -> None:
    """Above the large box are small ones; a tag rather covers some of the large box."""
    large, small = Rectangle(0, 20, 200, 100), [Rectangle(x, 8, x + 12, 20) for x in range(0, 200, 14)]
    [place, *_] = place_tags([large, *small], [60, *[0] * len(small)], 10, PICTURE)
    assert place is not None
    assert all(place.overlap(frame) == 0 for frame in small)
    assert place.overlap(large) == place.area


def test_small_objects_side_by_side_have_their_tags_outside() -> None:
    frames = [Rectangle(x, 40, x + 16, 56) for x in (10, 70, 130)]
    places = place_tags(frames, [50, 50, 50], 12, PICTURE)
    for place in places:
        assert place is not None
        assert all(place.overlap(frame) == 0 for frame in frames)


def test_a_frame_without_a_tag_takes_no_place() -> None:
    frame = Rectangle(20, 30, 60, 70)
    assert place_tags([frame, frame], [0, 30], 10, PICTURE) == [None, (20, 20, 50, 30)]


def test_in_a_crowd_tags_hide_little_of_each_other_and_the_first_has_its_place() -> None:
    rng = np.random.default_rng(3)
    frames = [frame_of([*corner, 40, 30], *PICTURE) for corner in (rng.random((60, 2)) * [160, 70]).tolist()]
    places = place_tags(frames, [35] * 60, 12, PICTURE)
    kept = [place for place in places if place]
    assert places[0] is not None
    assert 5 < len(kept) < 60
    for place, other in itertools.combinations(kept, 2):
        assert place.overlap(other) <= 0.25 * place.area
    for place in kept:
        assert 0 <= place.left < place.right <= PICTURE[0]
        assert 0 <= place.top < place.bottom <= PICTURE[1]


def test_a_text_is_shortened_before_its_score() -> None:
    assert shorten("wolf: 0.87", 10, len) == "wolf: 0.87"
    assert shorten("wolverine: 0.87", 10, len) == "wolv… 0.87"
    assert shorten("wolverine", 6, len) == "…erine"
    assert shorten("wolverine", 2, len) == "…erine"
    assert shorten("", 2, len) == ""


def test_a_tag_is_not_wider_than_the_picture() -> None:
    picture = Image.new("RGB", (100, 60))
    draw_tags(picture, [Rectangle(20, 30, 60, 50)], [(255, 0, 0)], ["a name that is longer than this picture: 0.87"])
    red = np.asarray(picture)[:, :, 0] == 255
    rows, columns = np.flatnonzero(red.any(1)), np.flatnonzero(red.any(0))
    assert 80 < columns[-1] - columns[0] < 100
    # The last letters have space to the right of them: they are not cut.
    assert red[rows[0] : rows[-1] + 1, columns[-1] - 1].all()
