"""What the first model of a data set reaches: AP against the processors' minutes of `run` with the defaults.

    python -m benchmarks.first_model --data DIR ... [--budgets 1 3 10] [--seeds 0] [--set KEY=VALUE ...] [--chart SVG]

Each DIR is a data set folder; `digits` stands for the drawn digits of `make demo`.  For each set, `run` trains,
evaluates and pushes as a user's first command does; then it goes on to 3 and 10 times as many steps, from before the
decay of the learning rate.  Prints a line per run: steps, AP and AP50 on the evaluation split, and the minutes of the
processors (user and system) of all commands so far.  After the budgets of a set, AP of the first as a share of the
last.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from detection.datasets.demo_data import make_demo_data
from schemas.artifacts import CONFIG_YAML, METRICS_JSON
from schemas.config.config_io import load_config

_PROGRAM = Path(__file__).parents[1] / "pipeline_runner.py"


class Reached(NamedTuple):
    """Results of one run.

    steps: steps of the training.
    ap: AP on the evaluation split.
    ap50: AP50.
    minutes: of the processors, of this run alone.
    """

    steps: int
    ap: float
    ap50: float
    minutes: float


def first_model(data: Path, folder: Path, *, assignments: Sequence[str]) -> Reached:
    """Runs the pipeline in a process of its own.

    Args:
        data: data set folder.
        folder: folder of the runs, of which a longer one goes on from a shorter one.
        assignments: `KEY=VALUE`s.

    Raises:
        SystemExit: the run failed; the message has the end of what it printed.
    """
    flags = [f"--set={assignment}" for assignment in (f"run.root={folder}", *assignments)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, _PROGRAM, "run", "--data", data, *flags], capture_output=True, text=True, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise SystemExit(f"{data}: {(done.stdout + done.stderr)[-2000:]}")
    config = max(folder.glob(f"artifacts/DetectionTrainer/model_run/*/{CONFIG_YAML}"))  # named by the time
    metrics = max(folder.glob(f"artifacts/CocoEvaluator/evaluation/*/{METRICS_JSON}"))
    ap, ap50, *_ = json.loads(metrics.read_text())["stats"]
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Reached(load_config(config).train.fixed_steps, ap, ap50, seconds / 60)


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, metavar="DIR", nargs="+")
    parser.add_argument("--budgets", type=int, nargs="+", default=[1, 3, 10])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--set", dest="assignments", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--chart", metavar="SVG")
    args = parser.parse_args()
    print(f"{'data':>16}  {'budget':>6}  {'seed':>4}  {'steps':>6}  {'AP':>6}  {'AP50':>6}  {'minutes':>7}", flush=True)
    curves = {}
    for data in args.data:
        with tempfile.TemporaryDirectory() as folder:
            curves[Path(data).name] = _budgets(data, args, Path(folder))
    if args.chart:
        _draw(curves, Path(args.chart))


def _budgets(data: str, args: argparse.Namespace, folder: Path) -> list[Reached]:
    """Runs all budgets and seeds of a set; returns the mean of each budget."""
    name, source = Path(data).name, Path(data)
    if data == "digits":
        source = folder / "digits"
        make_demo_data(source)
    means: list[Reached] = []
    minutes = dict.fromkeys(args.seeds, 0.0)
    for budget in args.budgets:
        reached = []
        for seed in args.seeds:
            assignments = [*args.assignments, f"train.seed={seed}"]
            if means:
                assignments.append(f"train.steps={means[0].steps * budget // args.budgets[0]}")
            one = first_model(source, folder / str(seed), assignments=assignments)
            minutes[seed] += one.minutes
            one = one._replace(minutes=minutes[seed])
            print(
                f"{name:>16}  {budget:6}  {seed:4}  {one.steps:6,}  {one.ap:6.3f}  {one.ap50:6.3f}  {one.minutes:7.1f}",
                flush=True,
            )
            reached.append(one)
        measured = ([getattr(one, field) for one in reached] for field in ("ap", "ap50", "minutes"))
        means.append(Reached(reached[0].steps, *map(statistics.mean, measured)))
    if len(means) > 1:
        print(f"{name:>16}  AP of the first budget / that of the last: {means[0].ap / max(means[-1].ap, 1e-9):.2f}")
    return means


def _draw(curves: dict[str, list[Reached]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, means in curves.items():
        axes.plot([one.minutes for one in means], [one.ap for one in means], marker="o", label=name)
    axes.set(xscale="log", xlabel="minutes of the processors", ylabel="AP", ylim=(0, 1))
    axes.legend()
    figure.savefig(path)


if __name__ == "__main__":
    main()
