"""A `run.root` that an earlier version wrote: two spans, each trained, blessed and pushed by a run of `watch`.

`old_root.json` holds its small files, each content once.  Two runs made them with stubs of the statistics, the training
and the evaluation; the second run trained on a window of both spans and started from the first model.  The records of
the examples, the metadata database and the logs are left out.  `run` is for `tests.forked_calls`.
"""

import json
from pathlib import Path
from typing import NamedTuple

_FOLDER = "{folder}"  # in the files: the folder that has the root and the data


class OldRoot(NamedTuple):
    """The root.

    root: `run.root`.
    runs: ids of its runs, the older one first.
    models: URIs of the models, in this order.
    examples: URIs of the examples, likewise.
    pushed: folders of the pushed versions, likewise.
    """

    root: str
    runs: tuple[str, str] = ("watch-20261125-100547-000002", "watch-20261125-100610-000003")

    @property
    def models(self) -> list[str]:
        return [f"{self.root}/artifacts/DetectionTrainer/model/{number}" for number in (7, 17)]

    @property
    def examples(self) -> list[str]:
        return [f"{self.root}/artifacts/CocoExampleGen/examples/{number}" for number in (1, 11)]

    @property
    def pushed(self) -> list[str]:
        return [f"{self.root}/serving/{number}" for number in (1795601166, 1795601191)]


def write_old_root(folder: Path) -> OldRoot:
    """Writes the root to `<folder>/run`; its data was in `<folder>/data/{SPAN}`."""
    stored = json.loads(Path(__file__).with_suffix(".json").read_text())
    for name, number in stored["files"].items():
        path = folder / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(stored["contents"][number].replace(_FOLDER, str(folder)))
    return OldRoot(str(folder / "run"))


def run(root: str, data: str, log: str) -> None:
    """The program's command `run` on the root, with the same stubs and a training that only writes its files."""
    import components.detection_trainer.executor
    import pipelines.runs.execute
    from tests.pipelines import base_model_stubs, stubbed_run
    from tests.pipelines.small_run import run_pipeline

    pipelines.runs.execute.check_run = lambda *_, **__: None
    components.detection_trainer.executor.train = base_model_stubs.train  # type: ignore[assignment]
    stubbed_run.replace_executors(log, except_for="DetectionTrainer")
    assert run_pipeline(root, data, assignments=("train.init.from_previous_model=true",)) == 0
