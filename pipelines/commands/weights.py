"""Lists published weights that trainings start from, or fetches them.

`list` shows name, detectors, origin, licence, size of the download and what is on this machine
already; --json also has the places and the complete addresses. `fetch` puts detectors (coco)
into the cache of weights, local or gs://, and backbones (imagenet) into Keras' cache. A fetched
detector is a model folder, which train.init.checkpoint, export, evaluate and predict read, too.

Trainings fetch what they need by themselves, see model.weights. Fetch before where the machine
that trains has no network.
"""

import argparse

SUMMARY = "list or fetch published weights that trainings start from"
EXAMPLE = "cocoflow weights fetch efficientdet-d0 --cache gs://my-bucket/weights"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's actions and their flags."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="list published weights, and which are on this machine")
    listing.add_argument("names", metavar="NAME", nargs="*", help="detectors or backbones; default: all")
    listing.add_argument("--json", action="store_true", help="print JSON instead of a table")
    fetching = actions.add_parser("fetch", help="fetch published weights that are not on this machine")
    fetching.add_argument("names", metavar="NAME", nargs="+", help="detectors or backbones")
    for action in (listing, fetching):
        action.add_argument(
            "--cache", metavar="DIR", help="cache of weights, local or gs://; default: as for model.weights_cache"
        )
        action.add_argument("--verbose", action="store_true", help="show the libraries' logs")


def run(args: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        ConfigError: an unknown name.
        DataError: weights that cannot be fetched, or a cache that cannot be written.
    """
    import json

    from pipelines.console import quiet_run

    with quiet_run(None, verbose=args.verbose):
        from detection.pretrained.listing import fetch_weights, find_weights, print_weights

        if args.action == "fetch":
            places = fetch_weights(args.names, args.cache)
        else:
            entries = find_weights(args.names, args.cache)
    if args.action == "fetch":
        print(*places, sep="\n")
    elif args.json:
        print(json.dumps([entry.as_json() for entry in entries], indent=2))
    else:
        print_weights(entries)
    return 0
