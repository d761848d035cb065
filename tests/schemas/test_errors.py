import errno
import traceback

import pytest

from schemas.errors import CocoflowError, ConfigError, DataError, RefusedModelError, find_user_error, was_interrupted


def test_finds_the_error_behind_others() -> None:
    try:
        try:
            raise DataError("a.json: broken")
        except DataError as inner:
            raise RuntimeError("component failed") from inner
    except RuntimeError as outer:
        error = find_user_error(outer)
    assert isinstance(error, DataError)
    assert str(error) == "a.json: broken"


def test_finds_the_error_in_the_text_that_beam_leaves_of_it() -> None:
    text = (
        'Traceback (most recent call last):\n  File "x.py", line 3, in process\n'
        "schemas.errors.DataError: a.json: image 7 is missing\n"
        "Restore it. [while running 'Read/ParDo(_Read)']\n"
    )
    error = find_user_error(RuntimeError(text))
    assert isinstance(error, DataError)
    assert str(error) == "a.json: image 7 is missing\nRestore it."


@pytest.mark.parametrize("kind", [CocoflowError, ConfigError, DataError, RefusedModelError])
def test_the_error_in_a_text_keeps_its_type(kind: type[CocoflowError]) -> None:
    error = find_user_error(RuntimeError("".join(traceback.format_exception(kind("a.json: broken")))))
    assert type(error) is kind
    assert str(error) == "a.json: broken"


def test_a_bug_is_not_a_user_error() -> None:
    assert find_user_error(ValueError("config")) is None
    assert ConfigError("x").exit_code == 2


def test_the_trail_that_beam_adds_is_taken_off() -> None:
    error = find_user_error(DataError("a.json: broken [while running 'candidate/Match']"))
    assert str(error) == "a.json: broken"


def _nested(innermost: BaseException) -> RuntimeError:
    try:
        try:
            raise innermost
        except BaseException as inner:
            raise RuntimeError("KeyboardInterrupt is documented elsewhere") from inner
    except RuntimeError as middle:
        outer = RuntimeError("node failed")
        outer.__context__ = middle
        return outer


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(),
        _nested(KeyboardInterrupt()),
        RuntimeError("KeyboardInterrupt [while running 'Run[DetectionTrainer]']"),
        _nested(RuntimeError("KeyboardInterrupt [while running 'a'] [while running 'Run[b]']")),
        RuntimeError('Traceback (most recent call last):\n  File "x.py", line 3\nKeyboardInterrupt\n'),
        RuntimeError("Traceback\n  File 'x'\nKeyboardInterrupt [while running 'a']\n\nDuring handling of ..."),
    ],
)
def test_an_interrupt_is_found_behind_the_errors_that_beam_makes_of_it(error: BaseException) -> None:
    assert was_interrupted(error)
    assert find_user_error(error) is None


@pytest.mark.parametrize(
    "error", [DataError("KeyboardInterrupt.json: broken"), _nested(ValueError("3")), RuntimeError("KeyboardInterrupts")]
)
def test_other_errors_are_no_interrupt(error: BaseException) -> None:
    assert not was_interrupted(error)


def test_an_error_that_is_its_own_cause_is_searched_once() -> None:
    first, second = RuntimeError("a"), RuntimeError("b")
    first.__cause__, second.__cause__ = second, first
    assert not was_interrupted(first)


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/d/out.json"), "No space left on device (/d/out.json)"),
        (OSError(errno.EROFS, "Read-only file system"), "Read-only file system"),
        (
            RuntimeError("{{node device:CPU:0}} /d/my out/events.v2; No space left on device\n\tFailed to flush"),
            "No space left on device (/d/my out/events.v2)",
        ),
        (
            RuntimeError("Traceback\nOSError: [Errno 28] No space left on device: '/d/a' [while running 'b']"),
            "No space left on device (/d/a)",
        ),
        (_nested(OSError(errno.EDQUOT, "Disk quota exceeded", "/d/x")), "Disk quota exceeded (/d/x)"),
    ],
)
def test_what_the_disk_refuses_is_no_bug(error: Exception, refusal: str) -> None:
    user_error = find_user_error(error)
    assert user_error is not None
    assert str(user_error).startswith(f"cannot write to the disk: {refusal}. Free space")
    assert user_error.exit_code == 1


@pytest.mark.parametrize("error", [FileNotFoundError(errno.ENOENT, "No such file"), RuntimeError("no space")])
def test_other_system_errors_are_bugs(error: Exception) -> None:
    assert find_user_error(error) is None
