"""Load hostile files one after the other and print what was said, the seconds and the megabytes that each took.

A process of its own, so that memory can be measured: ``python -m tests.weights.hostile FILE…`` prints lines of JSON.
"""

import json
import resource
import sys
import time

import vitreous as vt


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def attempt(path):
    before, start = peak(), time.process_time()
    try:
        vt.load(path, **({"model": "vit_tiny_16"} if ".foreign." in path else {}))
        said = "loaded"
    except ValueError as error:
        said = str(error)
    return {"said": said, "seconds": time.process_time() - start, "megabytes": peak() - before}


if __name__ == "__main__":
    vt.create_model("vit_tiny_16", depth=1, dim=48)  # torch and all of Vitreous are loaded before anything is measured
    for path in sys.argv[1:]:
        print(json.dumps(attempt(path)), flush=True)
