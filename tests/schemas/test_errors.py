from schemas.errors import ConfigError, DataError, find_user_error


def test_finds_the_error_behind_others() -> None:
    try:
        try:
            raise DataError("a.json: broken")
        except DataError as inner:
            raise RuntimeError("component failed") from inner
    except RuntimeError as outer:
        found = find_user_error(outer)
    assert isinstance(found, DataError)
    assert str(found) == "a.json: broken"


def test_finds_the_error_in_the_text_that_beam_leaves_of_it() -> None:
    text = (
        'Traceback (most recent call last):\n  File "x.py", line 3, in process\n'
        "schemas.errors.DataError: a.json: image 7 is missing\n"
        "Restore it. [while running 'Read/ParDo(_Read)']\n"
    )
    found = find_user_error(RuntimeError(text))
    assert isinstance(found, DataError)
    assert str(found) == "a.json: image 7 is missing\nRestore it."


def test_a_bug_is_not_a_user_error() -> None:
    assert find_user_error(ValueError("config")) is None
    assert ConfigError("x").exit_code == 2


def test_the_trail_that_beam_adds_is_taken_off() -> None:
    found = find_user_error(DataError("a.json: broken [while running 'candidate/Match']"))
    assert str(found) == "a.json: broken"
