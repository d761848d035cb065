from detection.datasets.issues import ImageIssues, Issue, applied, limited
from schemas.config.issues import ISSUE_KINDS, IssuePolicies


def _issue(number: int, repaired: str) -> Issue:
    return Issue("image_missing", "drop", "train: 1.jpg", number, None, "missing.", repaired)  # type: ignore[arg-type]


def test_repairs_become_failures_beyond_two_percent() -> None:
    issues = [_issue(number, "image") for number in range(2)] + [_issue(9, "")]
    assert limited(issues, "train", images=100, annotations=0) == (issues, [])
    failed, reasons = limited(issues, "train", images=99, annotations=0)
    assert [issue.policy for issue in failed] == ["fail", "fail", "drop"]
    assert reasons == ["train: 2 of 99 images, more than 2%"]
    several = [*issues, *(_issue(number, "annotation") for number in range(3))]
    failed, reasons = limited(several, "train", images=100, annotations=140)
    assert [issue.policy for issue in failed] == ["drop", "drop", "drop", "fail", "fail", "fail"]
    assert reasons == ["train: 3 of 140 annotations, more than 2%"]


def test_a_certain_correction_does_not_count() -> None:
    issues = ImageIssues(IssuePolicies({}), where="train: 1.jpg", image_id=1)
    assert issues.add("box_outside", "over the border.", annotation_id=4, certain=True) == "fix"
    assert issues.add("box_outside", "far over it.", annotation_id=5) == "fix"
    assert issues.add("box_outside", "outside.", annotation_id=6, fixable=False, certain=True) == "drop"
    assert issues.add("image_broken", "damaged.") == "drop"
    assert issues.add("mask_box", "disagree.", annotation_id=7) == "keep"
    assert [issue.repaired for issue in issues.issues] == ["", "annotation", "annotation", "image", ""]
    assert "repaired" not in issues.issues[0].as_dict()


def test_what_repairing_does() -> None:
    fixed = {kind for kind in ISSUE_KINDS if applied("repair", kind) == "fix"}
    assert fixed == {"box_outside", "mask_broken", "keypoints_broken"}
    assert applied("fix", "box_outside", fixable=False) == "drop"
    assert applied("keep", "mask_box") == "keep"
