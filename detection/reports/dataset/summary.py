"""The start of the page and of the terminal output: verdict, images, categories, and remedies per kind of issue."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from detection.datasets.issues import Issue
from detection.datasets.trainable import doubts, obstacles
from detection.reports.dataset.tables import HANDLING, IssueCounts, Splits
from detection.reports.html.table import Cell, Link, Table, shown_name
from schemas.artifacts import EVAL_SPLIT
from schemas.config.issues import ISSUE_KINDS, Policy

_DROP, _KEEP = "drop the {subject}", "use it unchanged"
LISTED = 5  # max listed images, categories, and issues per kind
_LISTED_IDS = 3  # max listed annotations per image


class Choice(NamedTuple):
    """A policy that a user can choose: the flag to pass, and its effect."""

    flag: str
    effect: str


_ALL_AT_ONCE = (
    Choice("--set data.on_fault=fix", "fix what can be fixed, drop the rest"),
    Choice("--set data.on_fault=drop", "drop everything that stops a run"),
)


class Verdict(NamedTuple):
    """Verdict on a data set for training: `tone` is "good", "warn" or "bad"; `choices` let a run continue."""

    tone: str
    text: str
    choices: Sequence[Choice] = ()


class Kind(NamedTuple):
    """Issues of one kind with one policy.

    issues: their number.
    handling: their number, and how they are handled.
    first: the first issues.
    in_the_files: remedy in the data set's files.
    choices: policies with which a run continues.
    """

    name: str
    issues: int
    policy: Policy
    handling: str
    meaning: str
    in_the_files: str
    choices: Sequence[Choice]
    first: Sequence[Issue]


def verdict(
    splits: Splits,
    counts: IssueCounts,
    categories: Sequence[Mapping[str, Any]],
    *,
    judged: str = EVAL_SPLIT,
    shapes: Collection[str] = (),
) -> Verdict:
    """Determines whether a run would train, and the number of issues.

    A run stops at issues with the policy `fail`, at a split without a valid image, and where there is nothing to learn
    or to judge by.

    Args:
        splits: summaries by split name, after applying the policies.
        counts: (kind, policy) -> number of issues.
        categories: COCO categories.
        judged: split that judges the model.
        shapes: what the detector learns besides boxes, as for `obstacles`.
    """
    together = sum(counts.values())
    stopping = sum(count for (_, policy), count in counts.items() if policy == "fail")
    empty = [name for name, summary in splits.items() if not summary.images]
    kinds = len({kind for kind, _ in counts})
    issues = f"{count_text(together, 'issue')} of {count_text(kinds, 'kind')}"
    if stopping:
        reason = f"{stopping:,} of {issues} {'stops' if stopping == 1 else 'stop'} a run."
        return Verdict("bad", f"No, you cannot train on this yet: {reason}", _ALL_AT_ONCE)
    if empty or not splits:
        where = f"split {', '.join(map(shown_name, empty))} has" if empty else "the data set has"
        return Verdict("bad", f"No, you cannot train on this: {where} no valid image ({issues}).")
    if reasons := list(obstacles(splits, categories, judged=judged, shapes=shapes)):
        return Verdict("bad", f"No, you cannot train on this: {'; '.join(reasons)} ({issues}).")
    unsure = list(doubts(splits, categories, judged=judged))
    if not together and not unsure:
        return Verdict("good", "Yes, you can train on this: no issues.")
    by_policy: Counter[Policy] = Counter()
    for (_, policy), count in counts.items():
        by_policy[policy] += count
    handled = ", ".join(f"{by_policy[policy]:,} {words}" for policy, words in HANDLING.items() if by_policy[policy])
    found = [f"{issues}, {handled}"] if together else []
    return Verdict("warn", f"Yes, you can train on this: {'; '.join([*found, *unsure])}.")


def kinds_of(issues: Sequence[Issue], counts: IssueCounts) -> list[Kind]:
    """Lists the kinds of issues with their remedies; kinds that stop a run first, then the most frequent."""
    first: dict[tuple[str, Policy], list[Issue]] = defaultdict(list)
    for issue in issues:
        listed = first[issue.kind, issue.policy]
        if len(listed) < LISTED:
            listed.append(issue)
    ordered = sorted(counts.items(), key=lambda item: (item[0][1] != "fail", -item[1]))
    return [
        Kind(
            kind,
            count,
            policy,
            _handling(count, policy),
            meaning(kind),
            ISSUE_KINDS[kind].remedy,
            choices(kind, policy),
            first[kind, policy],
        )
        for (kind, policy), count in ordered
    ]


def image_table(issues: Sequence[Issue], anchors: Mapping[Issue, str]) -> Table:
    """Returns the images with the most issues.

    Args:
        issues: all issues.
        anchors: issue -> id of its picture on the page.
    """
    by_image: dict[tuple[str, int], list[Issue]] = defaultdict(list)
    for issue in issues:
        if issue.image_id is not None:
            by_image[issue.where, issue.image_id].append(issue)
    ordered = sorted(by_image.items(), key=lambda item: (-len(item[1]), item[0]))
    rows: list[list[Cell]] = []
    for (where, image_id), theirs in ordered[:LISTED]:
        anchor = next((anchors[issue] for issue in theirs if issue in anchors), None)
        name = shown_name(where)
        kinds = ", ".join(dict.fromkeys(issue.kind for issue in theirs))
        rows.append([Link(name, f"#{anchor}") if anchor else name, str(image_id), len(theirs), kinds, _ids(theirs)])
    return Table("", ("image", "id", "issues", "kinds", "annotations"), rows)


def category_table(concerned: Mapping[int, int], categories: Sequence[Mapping[str, Any]]) -> Table:
    """Returns the categories with the most annotations that have an issue, or an issue of their image.

    Args:
        concerned: category id -> number of such annotations.
        categories: COCO categories, with `id` and `name`.
    """
    names = {category["id"]: shown_name(category["name"]) for category in categories}
    ordered = sorted(concerned.items(), key=lambda item: (-item[1], item[0]))
    rows = [(names.get(identity, f"category {identity}"), str(identity), count) for identity, count in ordered[:LISTED]]
    return Table("", ("category", "id", "annotations"), rows)


def count_text(count: int, what: str) -> str:
    """Formats a count, such as "1 issue" or "1,200 issues"."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def _handling(count: int, policy: Policy) -> str:
    words = "stop a run" if policy == "fail" and count > 1 else HANDLING[policy]
    return f"{count_text(count, 'issue')} {words}"


def _ids(issues: Sequence[Issue]) -> str:
    ids = list(dict.fromkeys(str(issue.annotation_id) for issue in issues if issue.annotation_id is not None))
    rest = len(ids) - _LISTED_IDS
    return ", ".join(ids[:_LISTED_IDS]) + (f" and {rest:,} more" if rest > 0 else "")


def meaning(kind: str) -> str:
    """Describes a kind of issue, without the effects of policies."""
    return _description(kind)[0]


def choices(kind: str, policy: Policy) -> list[Choice]:
    """Lists the other policies with which a run continues.

    Args:
        kind: a key of `ISSUE_KINDS`.
        policy: the current policy.
    """
    others = [
        other for other in ("fix", "drop", "keep", "move") if other in ISSUE_KINDS[kind].allowed and other != policy
    ]
    return [Choice(f"--set data.on_fault.{kind}={other}", _effect(kind, other)) for other in others]


def _effect(kind: str, policy: str) -> str:
    details = _description(kind)[1].split("; ")
    described = next((part for part in details if part.startswith((f"{policy}: ", f"{policy} keeps"))), None)
    if described is not None:
        return described.removeprefix(policy).removeprefix(":").strip()
    if policy == "drop":
        subject = "image" if kind.startswith("image") else "image or annotation" if kind == "entry" else "annotation"
        return _DROP.format(subject=subject)
    return _KEEP


def _description(kind: str) -> tuple[str, str]:
    """Splits the kind's description: the issue, and the effect of `fix` or `drop` if described."""
    what, _, details = ISSUE_KINDS[kind].description.partition("; ")
    return what, details
