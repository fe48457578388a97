"""``python -m tests.fuzz --inputs 10000 --seed 1 --seconds 480``: a summary as JSON; exit code 1 if anything failed."""

import argparse
import itertools
import json
import sys

from tests.fuzz.kinds import KINDS
from tests.fuzz.runner import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--kind", choices=KINDS, help="only this kind of input")
    parser.add_argument("--only", help="one case, such as weights:31")
    given = parser.parse_args()
    kinds = [given.kind] if given.kind else list(KINDS)
    cases = ((kind, given.seed, index) for index in itertools.count() for kind in kinds)
    if given.only:
        kind, _, index = given.only.partition(":")
        cases = iter([(kind, given.seed, int(index))])
    summary = run(itertools.islice(cases, given.inputs), seconds=given.seconds)
    print(json.dumps(summary, indent=1, ensure_ascii=True))
    return int(summary["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
