"""Each documented command line starts a program that exists, with flags and keys that it takes."""

import importlib
import importlib.util
import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

import pipeline_runner
from schemas.artifacts import CLIENT_PY
from schemas.config.config_io import load_config

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "benchmarks/README.md"]
CONFIGS = sorted((ROOT / "pipelines/configs").glob("*.yaml"))
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
OURS = ("cocoflow", "tensorboard", "python")  # programs of the environment
SHELL = ("make", "source", "export", "pip", "uv")  # of the shell, or of the system that README names
HEAD = "[environment](../README.md#installation): `source .venv/bin/activate`."
# The configuration that the commands take as mine.yaml.
MINE = (ROOT / "docs/submission.md").read_text(encoding="utf-8").split("```yaml\n# mine.yaml\n")[1].split("```")[0]

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")
_COMMAND = re.compile(r"(?:\$ )?(?:[\w./-]*/)?(?:cocoflow|tensorboard|python3?|pipeline_runner\.py|make) \S")
_PLACEHOLDER = re.compile(r"\b[A-Z]{2,}\b(?!=)|\.\.\.$")  # of a command as a pattern, in running text


def _joined(block: str) -> list[str]:
    """Command lines of a block, continued ones as one."""
    return [line for line in block.replace("\\\n", " ").splitlines() if line.strip()]


def documented_lines(page: Path) -> list[str]:
    """Command lines in blocks of `sh` and `console`."""
    lines = []
    for language, block in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if language == "console":
            lines += [line.removeprefix("$ ") for line in _joined(block) if line.startswith("$ ")]
        elif language == "sh":
            lines += _joined(block)
    return lines


def page_commands(page: Path) -> list[str]:
    """Command lines in blocks of `sh` and `console`, in texts of `python`, and in running text."""
    text = page.read_text(encoding="utf-8")
    lines = documented_lines(page)
    for language, block in _BLOCK.findall(text):
        if language == "python":
            lines += re.findall(r'"(cocoflow [^"]+)"', block)
    spans = [" ".join(span.split()) for span in _SPAN.findall(_BLOCK.sub("", text))]
    return lines + [span for span in spans if _COMMAND.match(span) and not _PLACEHOLDER.search(span)]


def config_commands(config: Path) -> list[str]:
    """Command lines in the comments at a configuration's head."""
    comment = "".join(line for line in config.read_text(encoding="utf-8").splitlines(True) if line.startswith("#"))
    return _joined("".join(f"{line}\n" for line in re.findall(r"^#   +(.*)$", comment, re.MULTILINE)))


def notebook_commands(path: Path) -> list[str]:
    """Command lines in the texts of a notebook."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    spans = [" ".join(span.split()) for text in texts for span in _SPAN.findall(text)]
    return [span for span in spans if _COMMAND.match(span)]


def example_commands() -> list[tuple[str, str]]:
    """Command lines of the examples in the help of each command."""
    modules = {
        name: importlib.import_module(f"pipelines.commands.{name.replace('-', '_')}")
        for name in pipeline_runner.COMMANDS
    }
    return [(f"{name} --help", line.strip()) for name, module in modules.items() for line in _joined(module.EXAMPLE)]


ALL = [
    *((page.name, line) for page in PAGES for line in page_commands(page)),
    *((config.name, line) for config in CONFIGS for line in config_commands(config)),
    *((path.name, line) for path in NOTEBOOKS for line in notebook_commands(path)),
    *example_commands(),
]


def test_all_kinds_of_documents_have_commands() -> None:
    names = [name for name, _ in ALL]
    assert len(ALL) > 90
    assert {"README.md", "export.md", "retrain.yaml", "pipeline.ipynb", "schedule --help"} <= set(names)


@pytest.mark.parametrize(("where", "line"), ALL, ids=[f"{where}-{number}" for number, (where, _) in enumerate(ALL)])
def test_a_command_starts_a_program_with_flags_and_keys_that_it_takes(where: str, line: str) -> None:
    program, *arguments = shlex.split(line, comments=True)
    assert program in OURS + SHELL, f"{where}: {line}"
    if program in OURS:
        assert shutil.which(program, path=str(Path(sys.executable).parent))
    if program == "python" and arguments[0] != f"mobile/{CLIENT_PY}":
        assert arguments[0] == "-m"
        assert importlib.util.find_spec(arguments[1])
    elif program == "make":
        assert re.search(rf"^{arguments[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif program == "cocoflow":
        _parse(arguments)


def _parse(arguments: list[str]) -> None:
    if arguments == ["--help"]:
        return
    args = pipeline_runner.build_parser().parse_args(arguments)
    config = getattr(args, "config", "")
    if config == "mine.yaml":
        load_config(config, args.assignments, text=MINE)
    elif Path(config).is_file():
        load_config(config, args.assignments)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_stand_in_blocks_that_are_checked_here(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    others = "".join(block for language, block in _BLOCK.findall(text) if language not in ("sh", "console"))
    indented = re.findall(r"^    .*", _BLOCK.sub("", text), re.MULTILINE)
    assert not [line for line in [*others.splitlines(), *indented] if _COMMAND.match(line.strip())]


@pytest.mark.parametrize("page", PAGES[1:-1], ids=lambda page: page.name)
def test_a_page_with_commands_says_how_they_become_available(page: Path) -> None:
    needs = any(line.startswith(("cocoflow ", "tensorboard ")) for line in page_commands(page))
    assert (HEAD in page.read_text(encoding="utf-8")) == needs
