"""vitreous explain"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from json import dumps
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from vitreous.cli.image_paths import Images, Weights, make_predictor, report_skipped
from vitreous.cli.show import err, out, shortened
from vitreous.data.image_files import BadImage, find_images
from vitreous.explain.explainer import choose_methods, class_number
from vitreous.explain.explainer import explain as explain_image
from vitreous.explain.explanation import Explanation
from vitreous.files import write_atomically
from vitreous.models.base import Model
from vitreous.pages.explanation import Entry, write_index, write_page
from vitreous.pages.explanation_sections import verdict


def explain(
    weights: Weights,
    images: Images,
    model: str | None = None,
    output: Path = Path("explain.html"),
    compare: Path | None = None,
    compare_model: str | None = None,
    target: str | None = None,
    methods: tuple[str, ...] = (),
    quick: bool = False,
    json: Path | None = None,
) -> None:
    """Show why a model answers as it does: one page for an image, and an index of pages for several.

    Args:
        weights: A weights file of ours, one of others with --model, or the name of a public weight.
        images: Files, folders, or patterns in quotes.
        model: The model of a foreign weights file, such as deit_tiny_16.
        output: The page; for several images their index, with the pages in a folder of the same name.
        compare: Another weights file, to be shown beside the first.
        compare_model: The model of that file, if it is a foreign one.
        target: A class, by name or number, to explain in place of the model's own answer.
        methods: Which maps to make, such as rollout "gradient rollout" occlusion; by itself all.
        quick: Only what asks the model a few times.
        json: A file for the numbers behind the page; for several images or models it holds a list.
    """
    check_file(output, "--output", ".html", ".htm")
    if json is not None:
        check_file(json, "--json", ".json")
    paths = find_images(images)
    asked = Asked(target, tuple(re.sub("[-_]", " ", name) for name in methods), quick)
    sources = [(weights, model)] + ([] if compare is None else [(compare, compare_model)])
    names = names_of([source for source, _ in sources])
    models = [NamedModel(name, make_predictor(*source).model) for name, source in zip(names, sources, strict=True)]
    for named in models:
        asked.check(named.model)
    if len(paths) > 1:
        check_folder(output.with_suffix(""), paths)
    if len(paths) == 1:
        one_page(models, paths[0], output, asked, json)
    else:
        many_pages(models, paths, output, asked, json)


@dataclass(frozen=True)
class Asked:
    """What to find out about every image."""

    target: str | None
    methods: tuple[str, ...]
    quick: bool

    def check(self, model: Model) -> None:
        """Complain before the first image, not after the last."""
        choose_methods(model, self.methods, quick=self.quick)
        if self.target is not None:
            class_number(model, self.target)


@dataclass(frozen=True)
class NamedModel:
    """A model with the name that the pages give it."""

    name: str
    model: Model

    def explain(self, path: Path, asked: Asked, tell: Callable[[str], None]) -> Explanation:
        return explain_image(
            self.model, path, target=asked.target, methods=asked.methods, quick=asked.quick, name=self.name,
            progress=tell,
        )  # fmt: skip


def one_page(models: Sequence[NamedModel], path: Path, output: Path, asked: Asked, json: Path | None) -> None:
    with watched(1) as watch:
        explanations = [named.explain(path, asked, watch.tell) for named in models]
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
    models: Sequence[NamedModel], paths: Sequence[Path], output: Path, asked: Asked, json: Path | None
) -> None:
    """Page after page; the index tells of those that are finished, however the run ends."""
    folder = output.with_suffix("")
    entries: list[Entry] = []
    evidence: list[dict[str, Any]] = []
    skipped: dict[str, str] = {}
    try:
        with watched(len(paths)) as watch:
            for path, name in zip(paths, page_names(paths), strict=True):
                try:
                    explanations = [named.explain(path, asked, watch.telling(path)) for named in models]
                    folder.mkdir(exist_ok=True)
                    write_page(folder / name, explanations)
                    entries.append(Entry.of(f"{folder.name}/{name}", explanations))
                    if json is not None:
                        evidence += [explanation.to_json() for explanation in explanations]
                except BadImage as error:
                    skipped[str(path)] = error.reason
                watch.next()
    finally:
        if entries:
            write_index(output, [named.name for named in models], entries, skipped)
            if json is not None:
                write_json(json, evidence)
    report_skipped(skipped, len(paths))
    say(f"{output}: an index of {len(entries):,} pages in {folder}")


def write_json(path: Path, evidence: dict[str, Any] | list[dict[str, Any]]) -> None:
    write_atomically(path, dumps(evidence, ensure_ascii=False, allow_nan=False).encode())


def say(line: str) -> None:
    out.print(line, markup=False, soft_wrap=True)


def names_of(weights: Sequence[Path]) -> list[str]:
    """The names of files; where these are the same, as in two runs, with their folders, or else whole paths."""
    plain = [path.name.removesuffix(".safetensors") for path in weights]
    in_folders = [f"{path.resolve().parent.name}/{name}" for path, name in zip(weights, plain, strict=True)]
    return next(
        (names for names in (plain, in_folders) if len(set(names)) == len(names)), [str(path) for path in weights]
    )


def page_names(paths: Sequence[Path]) -> list[str]:
    """A page for every image, named after it; images of the same name are numbered."""
    names: dict[str, None] = {}
    for path in paths:
        stem = re.sub(r"[^\w.-]+", "_", path.stem).strip(".") or "image"
        candidates = (stem if number == 1 else f"{stem}-{number}" for number in itertools.count(1))
        names[next(name for name in candidates if name not in names)] = None
    return [f"{name}.html" for name in names]


def check_file(path: Path, option: str, *endings: str) -> None:
    """Refuse a file that could not be written before hours of work rather than after them."""
    if path.suffix not in endings:
        raise ValueError(f"{option} must end in {endings[0]}, got {path}")
    if path.is_dir() or not path.resolve().parent.is_dir():
        raise ValueError(f"cannot write {path}: {'it is a folder' if path.is_dir() else 'there is no such folder'}")


def check_folder(folder: Path, images: Sequence[Path]) -> None:
    """Where the pages of several images go: not onto a file, and not among the images."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"the pages go into a folder {folder}, but that is a file; choose another --output")
    if any(folder.resolve() in image.resolve().parents for image in images):
        raise ValueError(f"the pages would go into {folder}, where the images lie; choose another --output")


@dataclass(frozen=True)
class Watch:
    """A bar on stderr, where somebody is watching, that tells what is being done."""

    bar: Progress
    task: TaskID

    def tell(self, doing: str) -> None:
        self.bar.update(self.task, description=doing)

    def telling(self, path: Path) -> Callable[[str], None]:
        return lambda doing: self.tell(f"{shortened(path.name)}: {doing}")

    def next(self) -> None:
        self.bar.advance(self.task)


@contextmanager
def watched(total: int) -> Iterator[Watch]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        yield Watch(bar, bar.add_task("looking", total=total))
