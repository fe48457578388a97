"""vitreous push"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import tyro
from rich.markup import escape

from vitreous.cli.display import err, out
from vitreous.weights.load import load
from vitreous.weights.publish import push_run, push_to_hub

Source = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
Repository = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="USER/NAME")]


def push(source: Source, repository: Repository, license: str = "", private: bool = False) -> None:
    """Publish a model on the Hugging Face hub, with a model card that lists what its run measured.

    The access token is that of ``hf auth login`` or of the environment variable HF_TOKEN.

    Args:
        source: A run folder, whose measured metrics go into the model card, or a Vitreous checkpoint.
        repository: The repository, created if it does not exist.
        license: License identifier for the model card, such as apache-2.0.
        private: Create the repository as a private one.
    """
    with err.status(f"publishing {escape(source)}"):
        if os.path.isdir(source) and (Path(source) / "result.json").exists():
            url = push_run(source, repository, license=license, private=private)
        else:
            url = push_to_hub(load(source), repository, license=license, private=private)
    out.print(f"Published at {url}\n\nLoad it with\n  vt.load({f'hf_hub:{repository}'!r})", markup=False)
