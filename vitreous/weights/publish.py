"""Publish a model with its model card and measured metrics on the Hugging Face hub."""

from __future__ import annotations

import importlib
import json
import os
import tempfile
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any

import vitreous
from vitreous.models.base import Model
from vitreous.weights.files import save
from vitreous.weights.load import load
from vitreous.weights.reading import first_line

PIPELINES = {"classify": "image-classification", "multilabel": "image-classification", "segment": "image-segmentation"}
#: Metrics in a run's ``result.json`` and their names in the model card.
METRICS = {
    "accuracy": "Accuracy",
    "top5": "Top-5 accuracy",
    "miou": "Mean IoU",
    "pixel_accuracy": "Pixel accuracy",
    "auroc": "Mean AUROC",
    "average_precision": "Mean average precision",
}


def push_to_hub(
    model: Model,
    repository: str,
    *,
    metrics: Mapping[str, float] | None = None,
    dataset: str = "",
    command: str = "",
    license: str = "",
    private: bool = False,
    token: str | None = None,
) -> str:
    """Publish a model on the Hugging Face hub with a model card, and return the repository's URL.

    The repository is created if it does not exist; ``vt.load("hf_hub:user/name")`` reads the model back.

    Args:
        model: The model to publish; its file holds the weights, config, edits, preprocessing, labels and task.
        repository: ``"user/name"``.
        metrics: Measured results, e.g. ``{"accuracy": 0.81}``. The card lists only these.
        dataset: The name of the dataset on which ``metrics`` were measured.
        command: The command that trained the model.
        license: The license's identifier, e.g. ``"apache-2.0"``; omitted from the card if empty.
        private: Create the repository as a private one.
        token: An access token; the default is the one stored by ``hf auth login`` or in ``HF_TOKEN``.

    Raises:
        ValueError: If the name is not of the form ``user/name``, or the hub refuses the upload.
    """
    owner, _, name = repository.partition("/")
    if not owner or not name or "/" in name:
        raise ValueError(f"repository must have the form user/name, got {repository!r}")
    hub = importlib.import_module("huggingface_hub")
    card = model_card(model, repository, metrics=metrics or {}, dataset=dataset, command=command, license=license)
    with tempfile.TemporaryDirectory() as folder:
        save(model, Path(folder) / "model.safetensors")
        (Path(folder) / "README.md").write_text(card)
        try:
            api = hub.HfApi(token=token)
            url = api.create_repo(repository, private=private, exist_ok=True)
            api.upload_folder(repo_id=repository, folder_path=folder, commit_message="Upload model with Vitreous")
        except Exception as error:  # network, permission and naming errors are of many types
            raise ValueError(f"could not publish {repository!r} on the Hugging Face hub: {first_line(error)}") from None
    return str(url)


def push_run(folder: str | os.PathLike[str], repository: str, **options: Any) -> str:
    """Publish the model of a run folder with the metrics of the run."""
    result = read_json(Path(folder) / "result.json")
    config = read_json(Path(folder) / "config.json")
    source = config.get("data", {}).get("source", "") if isinstance(config.get("data"), dict) else ""
    measured = {name: value for name in METRICS if is_number(value := result.get(name))}
    facts = {"metrics": measured, "command": str(result.get("command", "")), "dataset": Path(str(source)).name}
    return push_to_hub(load(folder), repository, **(facts | options))


def read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        raise ValueError(f"{path.parent} is not the folder of a finished run: cannot read {path.name}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} must contain a JSON object, got {type(found).__name__}")
    return found


def is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def model_card(
    model: Model, repository: str, *, metrics: Mapping[str, float], dataset: str, command: str, license: str
) -> str:
    """Write the repository's README.md: metadata for the hub, usage, and the measured metrics."""
    spec, config = model.spec, model.config
    size = "×".join(str(side) for side in spec.preprocess.image_size)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    header = {
        "library_name": "vitreous",
        "pipeline_tag": PIPELINES.get(spec.task, "image-feature-extraction"),
        "tags": ["vitreous", "vision-transformer"],
        **({"license": license} if license else {}),
        **({"model-index": [index_entry(model, repository, metrics, dataset)]} if metrics and dataset else {}),
    }
    lines = [
        "---",
        json.dumps(header, indent=1, ensure_ascii=False),  # JSON is YAML
        "---",
        "",
        f"# {repository.split('/')[1]}",
        "",
        f"A {type(model).__name__} with {parameters:,} parameters and {config.num_classes} outputs "
        f"for images of {size} pixels (task: `{spec.task}`).",
        "",
        "```python",
        "import vitreous as vt",
        "",
        f'predictor = vt.Predictor(vt.load("hf_hub:{repository}"))',
        'print(predictor("image.jpg"))',
        "```",
        "",
    ]
    if metrics:
        lines += [f"## Measured{f' on {dataset}' if dataset else ''}", "", "| metric | value |", "|---|---|"]
        lines += [f"| {METRICS.get(name, name)} | {value:.4f} |" for name, value in metrics.items()]
        lines.append("")
    if command:
        lines += ["## Training", "", "```", command, "```", ""]
    if spec.labels.names:
        lines += ["## Classes", "", ", ".join(spec.labels.names), ""]
    lines.append(f"Written by Vitreous {vitreous.__version__}.")
    return "\n".join(lines) + "\n"


def index_entry(model: Model, repository: str, metrics: Mapping[str, float], dataset: str) -> dict[str, Any]:
    """Return the card's ``model-index`` entry, used by the hub to show evaluation results."""
    values = [{"type": name, "name": METRICS.get(name, name), "value": value} for name, value in metrics.items()]
    task = {"type": PIPELINES.get(model.spec.task, "image-classification")}
    results = [{"task": task, "dataset": {"name": dataset, "type": dataset}, "metrics": values}]
    return {"name": repository.split("/")[1], "results": results}
