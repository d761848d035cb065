"""The pages lead to each other, answer a new reader's questions, and say each thing once."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

import pipeline_runner
from tests.test_architecture import ALLOWED_IMPORTS, ROOMS

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", *DOCS]
MOST_README_WORDS = 1_200
MOST_DOCS_WORDS = 50_000  # without what is generated
LEAST_WORDS = 8  # of a sentence that may occur once
# The standard line before commands, which test_command_lines requires.
ENVIRONMENT = "run the commands in the activated environment source venvbinactivate"


class Answer(NamedTuple):
    """What a reader finds one click away from README."""

    link: str
    words: tuple[str, ...]


QUESTIONS = {
    "How do I use my own data?": Answer("docs/data.md", ("--data", "COCO", "Roboflow", "CVAT")),
    "Which detector shall I take?": Answer("docs/detectors.md", ("efficientdet-lite0", "mask-rcnn-r50")),
    "How long does a training take, and what does it reach?": Answer("docs/recipes.md", ("minutes", "AP50")),
    "What does a GPU need?": Answer("docs/gpu.md", ("driver", "make env GPU=1")),
    "How do I install it without this environment?": Answer("docs/installation.md", ("pip install", "`tfx`")),
    "How do I get it onto a phone?": Answer("docs/phones.md", ("--format mediapipe", "Android", "iOS")),
    "How do I use it from Python?": Answer("docs/python.md", ("load_detector", "predict")),
    "How do I put it into a TFX pipeline of my own?": Answer("docs/tfx.md", ("CocoExampleGen", "SavedModelPusher")),
    "I have an Object Detection API or Model Maker project. What now?": Answer(
        "docs/migrating.md", ("model_main_tf2.py", "pipeline.config", "tflite_model_maker", "exporter_main_v2.py")
    ),
    "What happens to errors in my data?": Answer("docs/data.md#checks-and-policies", ("quarantine.jsonl", "`drop`")),
    "When is a model good enough to be pushed?": Answer(
        "docs/evaluation.md#when-a-model-is-blessed", ("significantly worse", "evaluate.thresholds")
    ),
    "What does this word mean?": Answer("docs/glossary.md", ("blessed", "span", "EMA", "quarantine", "baseline")),
}


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def without_generated_tables(text: str) -> str:
    return re.sub(r"^<!-- table: .+ -->\n(?:\|.*\n)*", "", text, flags=re.MULTILINE)


def headings(text: str) -> list[str]:
    """Titles of a page without code, in order."""
    return re.findall(r"^#+ (.*)$", without_code(text), re.MULTILINE)


def anchor(title: str) -> str:
    """The fragment by which GitHub links to a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")


def section(text: str, fragment: str) -> str:
    """Text from a heading to the next of its rank or above; all if there is no fragment."""
    if not fragment:
        return text
    lines = text.splitlines()
    (start,) = [i for i, line in enumerate(lines) if line.startswith("#") and anchor(line.lstrip("# ")) == fragment]
    rank = len(lines[start].split()[0])
    ends = (i for i, line in enumerate(lines[start + 1 :], start + 1) if re.match(rf"#{{1,{rank}}} ", line))
    return "\n".join(lines[start : next(ends, len(lines))])


def links(text: str) -> list[str]:
    return [target for target in re.findall(r"\]\(([^)]+)\)", without_code(text)) if "://" not in target]


def broken_links(page: Path) -> list[str]:
    """Links of a page to files that do not exist, or to headings that their page lacks."""
    broken = []
    for link in links(text_of(page)):
        path, _, fragment = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (fragment and fragment not in map(anchor, headings(text_of(target)))):
            broken.append(link)
    return broken


def sentences(text: str) -> Iterator[str]:
    """Sentences of running text, in lower case, without punctuation and without the targets of links."""
    text = re.sub(r"<!--.*?-->", "", without_code(text), flags=re.DOTALL)
    lines = [line for line in text.splitlines() if not line.lstrip().startswith(("|", "#", "!["))]
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", "\n".join(lines)):
        for sentence in re.split(r"(?<=[.!?:;])\s+", " ".join(paragraph.split())):
            plain = re.sub(r"[^\w ]", "", re.sub(r"\]\([^)]*\)", "", sentence)).lower().split()
            if len(plain) >= LEAST_WORDS:
                yield " ".join(plain)


def repeated(texts: Mapping[str, str]) -> dict[str, list[str]]:
    """Sentence -> pages that have it, once for each time; only of sentences that occur more than once."""
    pages = defaultdict(list)
    for name, text in texts.items():
        for sentence in sentences(text):
            pages[sentence].append(name)
    return {sentence: names for sentence, names in pages.items() if len(names) > 1 and sentence != ENVIRONMENT}


def undated_figures(text: str) -> list[str]:
    """Measured figures (accuracy, speed) of sections that name no day."""
    figure = re.compile(r"\bAP\d* (?:of )?0\.\d\d+|[\d.]+ images/s\b")
    parts = re.split(r"^(?=## )", without_code(without_generated_tables(text)), flags=re.MULTILINE)
    return [hit for part in parts if not re.search(r"\b20\d\d-\d\d-\d\d\b", part) for hit in figure.findall(part)]


def test_readme_fits_one_screen() -> None:
    assert len(without_generated_tables(text_of(ROOT / "README.md")).split()) <= MOST_README_WORDS


def test_the_pages_can_be_read_in_an_evening() -> None:
    hand_written = [page for page in DOCS if page.name != "configuration.md"]
    assert sum(len(without_generated_tables(text_of(page)).split()) for page in hand_written) <= MOST_DOCS_WORDS


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_answered_one_click_away(question: str) -> None:
    answer = QUESTIONS[question]
    assert answer.link in links(text_of(ROOT / "README.md"))
    path, _, fragment = answer.link.partition("#")
    found = section(text_of(ROOT / path), fragment)
    assert [word for word in answer.words if word not in found] == []


def test_the_index_has_every_page_once_with_a_sentence() -> None:
    entries = re.findall(r"^- \[[^]]+\]\(([^)]+)\): (.+)$", text_of(ROOT / "docs/README.md"), re.MULTILINE)
    assert sorted(name for name, _ in entries) == sorted(page.name for page in DOCS if page.name != "README.md")
    assert all(sentence.endswith(".") for _, sentence in entries)


def test_no_two_pages_have_one_title() -> None:
    titles = [headings(text_of(page))[0].lower() for page in PAGES]
    assert len(set(titles)) == len(titles)


def test_nothing_is_said_twice() -> None:
    texts = {page.relative_to(ROOT).as_posix(): without_generated_tables(text_of(page)) for page in PAGES}
    assert repeated(texts) == {}


@pytest.mark.parametrize(
    "page",
    [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "benchmarks/README.md"],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    assert broken_links(page) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_measured_figures_name_the_day(page: Path) -> None:
    assert undated_figures(text_of(page)) == []


def test_the_page_of_commands_has_all_of_them() -> None:
    rows = re.findall(r"^\| ((?:`[\w-]+`,? ?)+) \|", text_of(ROOT / "docs/commands.md"), re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`([\w-]+)`", row)]
    assert sorted(listed) == sorted(pipeline_runner.COMMANDS)


def test_the_architecture_names_every_package() -> None:
    block = text_of(ROOT / "CONTRIBUTING.md").split("## Architecture")[1].split("```")[1]
    named = set(re.findall(r"\w+", block))
    assert {part for package in ALLOWED_IMPORTS for part in package.split(".")} - named == set()
    folders = {path.name for room in ROOMS for path in (ROOT / room).rglob("*")} | {
        path.name for path in ROOT.iterdir()
    }
    assert set(re.findall(r"(\w+)/", block)) - folders == set()


def test_the_checks_find_planted_faults(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One\n\n[a](#one) [b](#two) [c](other.md) [d](page.md#one)\n\n```\n[e](none.md)\n```\n")
    assert broken_links(page) == ["#two", "other.md"]
    twice = "A model is pushed only if it is [good](a.md) enough"
    assert list(repeated({"a": f"{twice}.\n\n- {twice}: yes.", "b": "| " + twice + ". |"}).values()) == [["a", "a"]]
    assert without_generated_tables("<!-- table: a b -->\n| x |\n|---|\nrest\n") == "rest\n"
    assert undated_figures("## A\n\nAP 0.71 on 2026-11-28.\n\n## B\n\nAP50 of 0.93 at 12 images/s.\n") == [
        "AP50 of 0.93",
        "12 images/s",
    ]
    assert section("# A\n\n## B\n\nx\n\n### C\n\ny\n\n## D\n", "b") == "## B\n\nx\n\n### C\n\ny\n"
