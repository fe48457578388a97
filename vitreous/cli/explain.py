"""vitreous explain"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from json import dumps
from pathlib import Path
from typing import Annotated, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from vitreous.cli.arguments import Architecture, Images, Weights, defaults_to
from vitreous.cli.display import err, out, shortened
from vitreous.cli.image_paths import make_predictor, report_skipped
from vitreous.data.image_files import BadImage, find_images
from vitreous.explain.explainer import explain as explain_image
from vitreous.explain.explainer import resolve_class, select_methods
from vitreous.explain.explanation import Explanation
from vitreous.files import write_atomically
from vitreous.models.base import Model
from vitreous.pages.explanation import IndexEntry, write_index, write_page
from vitreous.pages.explanation_sections import verdict


def explain(
    weights: Weights,
    images: Images,
    model: Architecture = None,
    output: Path = Path("explain.html"),
    compare: Annotated[Path | None, defaults_to("no comparison")] = None,
    compare_model: Annotated[str | None, defaults_to("read from the checkpoint")] = None,
    target: Annotated[str | None, defaults_to("the predicted class")] = None,
    methods: Annotated[tuple[str, ...], defaults_to("all that apply to the model")] = (),
    quick: bool = False,
    json: Annotated[Path | None, defaults_to("not written")] = None,
) -> None:
    """Explain predictions: one HTML page for an image, or an index of pages for several.

    Args:
        output: The HTML page. For several images their index, with the pages in a folder of the same name.
        compare: A second checkpoint to explain side by side with the first.
        compare_model: Architecture of the second checkpoint, if it is a third-party one.
        target: Class to explain, by name or index.
        methods: Attribution methods, such as rollout "gradient rollout" occlusion.
        quick: Only the methods that need few forward passes.
        json: JSON file for the numbers on the page; a list for several images or models.
    """
    check_file(output, "--output", ".html", ".htm")
    if json is not None:
        check_file(json, "--json", ".json")
    paths = find_images(images)
    request = Request(target, tuple(re.sub("[-_]", " ", name) for name in methods), quick)
    sources = [(weights, model)] + ([] if compare is None else [(compare, compare_model)])
    names = names_of([source for source, _ in sources])
    models = [NamedModel(name, make_predictor(*source).model) for name, source in zip(names, sources, strict=True)]
    for named in models:
        request.check(named.model)
    if len(paths) > 1:
        check_folder(output.with_suffix(""), paths)
    if len(paths) == 1:
        one_page(models, paths[0], output, request, json)
    else:
        many_pages(models, paths, output, request, json)


@dataclass(frozen=True)
class Request:
    """What to explain about every image."""

    target: str | None
    methods: tuple[str, ...]
    quick: bool

    def check(self, model: Model) -> None:
        """Raise a ValueError before the first image if the model lacks a method or class."""
        select_methods(model, self.methods, quick=self.quick)
        if self.target is not None:
            resolve_class(model, self.target)


@dataclass(frozen=True)
class NamedModel:
    """A model and its name on the pages."""

    name: str
    model: Model

    def explain(self, path: Path, request: Request, progress: Callable[[str], None]) -> Explanation:
        return explain_image(
            self.model, path, target=request.target, methods=request.methods, quick=request.quick, name=self.name,
            progress=progress,
        )  # fmt: skip


def one_page(models: Sequence[NamedModel], path: Path, output: Path, request: Request, json: Path | None) -> None:
    """Explain one image on one page."""
    with progress_bar(1) as bar:
        explanations = [named.explain(path, request, bar.describe) for named in models]
    write_page(output, explanations)
    if json is not None:
        evidence = [explanation.to_json() for explanation in explanations]
        write_json(json, evidence if len(evidence) > 1 else evidence[0])
    for explanation in explanations:
        out.print(
            f"{explanation.model}: {explanation.answer.best(1)[0][0]}. {verdict(explanation)}",
            markup=False,
            soft_wrap=True,
        )
    out.print(str(output), markup=False, soft_wrap=True)


def many_pages(
    models: Sequence[NamedModel], paths: Sequence[Path], output: Path, request: Request, json: Path | None
) -> None:
    """Explain several images; the index lists the finished pages even if the run is interrupted."""
    folder = output.with_suffix("")
    entries: list[IndexEntry] = []
    evidence: list[dict[str, Any]] = []
    skipped: dict[str, str] = {}
    try:
        with progress_bar(len(paths)) as bar:
            for path, name in zip(paths, page_names(paths), strict=True):
                try:
                    explanations = [named.explain(path, request, bar.describe_for(path)) for named in models]
                    folder.mkdir(exist_ok=True)
                    write_page(folder / name, explanations)
                    entries.append(IndexEntry.of(f"{folder.name}/{name}", explanations))
                    if json is not None:
                        evidence += [explanation.to_json() for explanation in explanations]
                except BadImage as error:
                    skipped[str(path)] = error.reason
                bar.advance()
    finally:
        if entries:
            write_index(output, [named.name for named in models], entries, skipped)
            if json is not None:
                write_json(json, evidence)
    report_skipped(skipped, len(paths))
    out.print(f"{output}: an index of {len(entries):,} pages in {folder}", markup=False, soft_wrap=True)


def write_json(path: Path, evidence: dict[str, Any] | list[dict[str, Any]]) -> None:
    write_atomically(path, dumps(evidence, ensure_ascii=False, allow_nan=False).encode())


def names_of(weights: Sequence[Path]) -> list[str]:
    """Return distinct display names: file names, else with the parent folder, else full paths."""
    stems = [path.name.removesuffix(".safetensors") for path in weights]
    in_folders = [f"{path.resolve().parent.name}/{name}" for path, name in zip(weights, stems, strict=True)]
    return next(
        (names for names in (stems, in_folders) if len(set(names)) == len(names)), [str(path) for path in weights]
    )


def page_names(paths: Sequence[Path]) -> list[str]:
    """Name a page after each image; number images of the same name."""
    names: dict[str, None] = {}
    for path in paths:
        stem = re.sub(r"[^\w.-]+", "_", path.stem).strip(".") or "image"
        candidates = (stem if number == 1 else f"{stem}-{number}" for number in itertools.count(1))
        names[next(name for name in candidates if name not in names)] = None
    return [f"{name}.html" for name in names]


def check_file(path: Path, option: str, *endings: str) -> None:
    """Raise a ValueError if ``path`` has another extension or cannot be written, before any work is done."""
    if path.suffix not in endings:
        raise ValueError(f"{option} must end in {endings[0]}, got {path}")
    if path.is_dir() or not path.resolve().parent.is_dir():
        raise ValueError(f"cannot write {path}: {'it is a folder' if path.is_dir() else 'its folder does not exist'}")


def check_folder(folder: Path, images: Sequence[Path]) -> None:
    """Raise a ValueError if the folder for the pages is a file or contains the images."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"the pages go into the folder {folder}, which is a file; choose another --output")
    if any(folder.resolve() in image.resolve().parents for image in images):
        raise ValueError(f"the pages would go into {folder}, which contains the images; choose another --output")


@dataclass(frozen=True)
class ProgressBar:
    """A progress bar on stderr whose description names the current step."""

    bar: Progress
    task: TaskID

    def describe(self, step: str) -> None:
        self.bar.update(self.task, description=step)

    def describe_for(self, path: Path) -> Callable[[str], None]:
        return lambda step: self.describe(f"{shortened(path.name)}: {step}")

    def advance(self) -> None:
        self.bar.advance(self.task)


@contextmanager
def progress_bar(total: int) -> Iterator[ProgressBar]:
    """Show a progress bar if stderr is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        yield ProgressBar(bar, bar.add_task("explaining", total=total))
