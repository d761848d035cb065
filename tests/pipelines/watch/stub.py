"""A `watch` whose runs are a stub, as programs of their own: `python -m tests.pipelines.watch.stub watch|run ...`."""

import argparse
import os
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from detection.config_files import read_config
from detection.storage import files
from detection.storage.atomic import write_text
from detection.storage.lock import lock_folder
from detection.storage.paths import join
from pipelines.runs.comparison import find_data, observe
from pipelines.runs.history import RunHistory, recorded_run
from pipelines.watch.watch import Watch
from schemas.artifacts import REPORT_HTML

EPOCH = datetime(2026, 11, 23, tzinfo=UTC)
STARTS, ENDS = "stub-starts", "stub-ends"  # folders below run.root: a file for each start and end of a run
EVALUATION = "stub-evaluation"


def command(*, run_id: str, trigger: str, config: str) -> list[str]:
    """The command line of a stub run."""
    return [sys.executable, "-m", __spec__.name, "run", run_id, trigger, config]


def watch(config: str, *, speed: float, began: float, once: bool) -> int:
    """Watches; a second lasts `speed` seconds, from `began` on."""

    def clock() -> datetime:
        return EPOCH + timedelta(seconds=(time.time() - began) * speed)

    given = Watch(read_config(config), command=command, clock=clock)
    if once:
        return 0 if given.run_once() else 1
    given.run()
    return 0


def run(run_id: str, trigger: str, config_path: str) -> None:
    """Does what `execute_run` does, with a nap as its work; it fails if a file `fail` says so."""
    config = read_config(config_path)
    root = config.run.root
    with lock_folder(root, instead="wait") as use:
        data = observe(config, find_data(config)).data
        report = join(root, EVALUATION, run_id)
        fields = {"trigger": trigger, "data": data, "evaluation": report}
        with recorded_run(RunHistory(root), use, run_id=run_id, config=config, fields=fields):
            write_text(join(root, STARTS, f"{run_id}-{os.getpid()}-{time.time_ns()}"), trigger)
            time.sleep(float(config.run.name.partition("-")[2] or 0) / 1000)
            if files.is_file(join(root, "fail")):
                raise RuntimeError("the stub fails")
            write_text(join(report, REPORT_HTML), "")
            write_text(join(root, ENDS, f"{run_id}-{os.getpid()}-{time.time_ns()}"), trigger)


def main() -> int:
    """The program."""
    if sys.argv[1] == "run":
        run(*sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    parser.add_argument("config", type=Path)
    parser.add_argument("--speed", type=float, default=1.0)
    parser.add_argument("--began", type=float, default=time.time())
    parser.add_argument("--once", action="store_true")
    args = parser.parse_args()
    return watch(str(args.config), speed=args.speed, began=args.began, once=args.once)


if __name__ == "__main__":
    import logging

    from pipelines.runs.stop_signals import stop_signals

    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    with stop_signals() as stop:
        try:
            code = main()
        except KeyboardInterrupt:
            code = stop.exit_code
    sys.exit(code)
