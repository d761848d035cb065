"""`make demo`: the whole pipeline on the embedded data set."""

import argparse
import sys
from pathlib import Path

import pipeline_runner
from pipelines.verbs.common import CONFIGS

DATA = Path("runs/demo-data")


def main() -> int:
    """Makes the data where it is missing, then calls `run` as a user would."""
    parser = argparse.ArgumentParser(prog="pipelines.demo", description=__doc__)
    parser.add_argument("--set", dest="assignments", metavar="KEY=VALUE", action="append", default=[])
    args = parser.parse_args()
    from pipelines.demo_data import make_demo_data

    make_demo_data(DATA)
    overrides = [part for assignment in args.assignments for part in ("--set", assignment)]
    return pipeline_runner.main(
        ["run", "--config", str(CONFIGS / "demo.yaml"), "--data", str(DATA), *overrides]
    )


if __name__ == "__main__":
    sys.exit(main())
