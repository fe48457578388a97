"""Load weights into a model: find the key map of their tensor names, adapt shapes where possible, refuse the rest."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from vitreous.models import find_config
from vitreous.models.base import Backbone, Model, ModelConfig
from vitreous.models.edit import rebuild
from vitreous.spec import Spec
from vitreous.weights import files, published
from vitreous.weights.fit import LoadReport as LoadReport
from vitreous.weights.fit import check_dtypes, check_fit, fit_channels, fit_head, fit_positions
from vitreous.weights.formats import rename_old_tensors
from vitreous.weights.keymaps import KeyMap, Translation, keymaps_of
from vitreous.weights.prefixes import strip_prefixes, stripped_prefix
from vitreous.weights.reading import WeightsFile

#: Counters that torch's averaged models store with the weights.
COUNTERS = ("n_averaged",)
NO_CONFIG = "does not contain a known model config (not written by vt.save, or a custom config)"


def load(source: str | os.PathLike[str], *, model: str | ModelConfig | None = None, **overrides: Any) -> Model:
    """Load a model with its weights: a file of :func:`vitreous.save`, published weights by name, or third-party files.

    The model is in float32 regardless of the file's precision.

    >>> load("cat.safetensors")
    >>> load("runs/mine")                              # a run's model, or a folder of transformers or timm
    >>> load("deit_tiny_16.in1k", num_classes=10)      # downloaded once, then cached; new head
    >>> load("deit.pth", model="deit_tiny_16")         # the file determines the number of classes
    """
    if is_name(source):
        return load_published(str(source), overrides)
    where, file = str(source), files.read(source)
    if file.third_party or file.config is None:
        return load_third_party(file, where, model, overrides)
    if model is not None:
        raise ValueError(f"{source} already contains its model config; omit model={model!r}")
    return create(file.config.override(**overrides), file, where, assign=not overrides)


def create(config: ModelConfig, file: WeightsFile, where: str, *, head: str = "adapt", assign: bool = False) -> Model:
    """Build a model with a file's weights; check the file's claims before allocating memory for them."""
    model = files.build_on_meta(config, where, file.edits)
    fitted = fit(model, file, where, head=head)
    assign = assign and has_only_saved_buffers(model)
    if not assign:
        model = rebuild(config, file.edits)
    copy_fitted(model, fitted, file, assign=assign)
    return model


def has_only_saved_buffers(model: Model) -> bool:
    """Return whether all buffers are in the state dict; others have values only if the model is built with memory."""
    return {name for name, _ in model.named_buffers(remove_duplicate=False)} <= model.state_dict().keys()


def load_published(name: str, overrides: dict[str, Any]) -> Model:
    weights = published.find(name)
    config = find_config(weights.model).override(**weights.config)
    target = config.override(**overrides)
    same_head = target.num_classes == weights.num_classes
    file = replace(files.read(published.fetch(weights)), config=config, spec=weights.spec(), third_party=True)
    return create(target, file, name, head="strict" if same_head else "adapt")


def load_third_party(
    file: WeightsFile, where: str, model: str | ModelConfig | None, overrides: dict[str, Any]
) -> Model:
    """Load a model named by the caller or a folder's config; the tensors determine the number of classes."""
    config = file.config if model is None else find_config(model)
    if config is None:
        raise ValueError(
            f"{where} {file.no_config_reason or NO_CONFIG}; "
            "pass the model, e.g. model='deit_tiny_16', or --model deit_tiny_16 on the command line"
        )
    bias = translate(files.build_on_meta(config, where, file.edits), file.tensors).tensors.get("head.bias")
    num_classes = len(bias) if bias is not None and bias.ndim == 1 else 0
    config = config.override(num_classes=num_classes)
    file = replace(file, config=config if model is None else None)
    result = create(config.override(**overrides), file, where)
    if result.config.num_classes == num_classes == 1000 and not result.spec.labels.names:
        result.name_classes(published.imagenet_labels().names)
    return result


def is_name(source: str | os.PathLike[str]) -> bool:
    """Return whether a source is a name like ``vit_tiny_16.augreg_in21k``; a path exists, has a folder or a suffix."""
    text = str(source)
    if isinstance(source, str) and published.is_published(text):
        return not os.path.lexists(text)
    suffixes = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".npz")
    return isinstance(source, str) and not os.path.lexists(text) and os.sep not in text and not text.endswith(suffixes)


def load_weights(
    model: Model,
    source: str | os.PathLike[str] | Mapping[str, Tensor],
    *,
    head: Literal["adapt", "strict"] = "adapt",
) -> LoadReport:
    """Copy weights with tensor names of Vitreous, timm, transformers, torchvision or the original code into ``model``.

    ``source`` is a file, a folder, a state dict or the name of published weights. Prefixes of wrappers such as DDP are
    stripped, positions are resampled to the model's grid and RGB filters adapted to its channels. If the number of
    classes differs, the head keeps its initial values (``head="strict"`` makes that an error). Any other mismatch is an
    error that lists it, and leaves the model unchanged.
    """
    if head not in ("adapt", "strict"):
        raise ValueError(f"head must be 'adapt' or 'strict', got {head!r}")
    if not isinstance(model, Backbone) and not contains_full_model(model, source):
        report = load_weights(model.backbone, source, head=head)
        model.spec = replace(model.spec, preprocess=model.backbone.spec.preprocess)
        return report
    if isinstance(source, Mapping):
        return copy_weights(model, WeightsFile(dict(source)), "the given state dict", head=head)
    if is_name(source) and published.is_published(str(source)):
        weights = published.find(str(source))
        report = copy_weights(model, files.read(published.fetch(weights)), str(source), head=head)
        adopt_spec(model, weights.spec(), keep_names=model.config.num_classes == weights.num_classes)
        return report
    return copy_weights(model, files.read(source), str(source), head=head)


def contains_full_model(model: Model, source: str | os.PathLike[str] | Mapping[str, Tensor]) -> bool:
    """Return whether weights are those of the full model rather than of its backbone alone."""
    if isinstance(source, Mapping):
        return any(name in names for names in strip_prefixes(source) for name in model.state_dict())
    return not is_name(source) and contains_full_model(model, files.read(source).tensors)


@dataclass(frozen=True)
class Fitted:
    """Tensors that fit ``target``: the model, or one with the config options that the weights require."""

    tensors: dict[str, Tensor]
    target: Model
    report: LoadReport


def copy_weights(model: Model, file: WeightsFile, where: str, *, head: str = "adapt") -> LoadReport:
    fitted = fit(model, file, where, head=head)
    copy_fitted(model, fitted, file)
    return fitted.report


def fit(model: Model, file: WeightsFile, where: str, *, head: str = "adapt") -> Fitted:
    """Rename a file's tensors to the model's names, adapt shapes where possible, and refuse other mismatches."""
    check_edits(model, file, where)
    source = files.build_on_meta(file.config, where, file.edits) if file.config is not None else None
    if source is not None and not file.third_party:
        renamed = rename_old_tensors(file.tensors, source.state_dict())
        check_fit(source, renamed, where)
        translation = Translation("Vitreous", renamed)
    else:
        translation = translate(model, file.tensors)
    report = LoadReport(translation.source, notes=[*file.notes, *translation.notes], unused=translation.unused)
    tensors, target = dict(translation.tensors), with_source_options(model, translation, report)
    expected = target.state_dict()
    check_dtypes(expected, tensors, where)
    fit_head(target, tensors, report, head=head)
    fit_channels(target, tensors, report)
    fit_positions(target, tensors, report, source)
    check_fit(target, tensors, where, translation, may_be_missing=report.fresh)
    report.num_loaded = len(tensors)
    return Fitted({name: tensor.to(expected[name].dtype) for name, tensor in tensors.items()}, target, report)


def copy_fitted(model: Model, fitted: Fitted, file: WeightsFile, *, assign: bool = False) -> None:
    """Copy fitted tensors into a model, and adopt the file's preprocessing and class names."""
    replace_modules(model, fitted.target)
    tensors = fitted.tensors
    if assign:  # cloned: a change to a memory-mapped file would change the model or crash the process
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    model.load_state_dict(tensors, strict=False, assign=assign)
    if file.spec is not None and (file.config is not None or file.third_party):
        num_classes = len(file.spec.labels) if file.config is None else file.config.num_classes
        adopt_spec(model, file.spec, keep_names=model.config.num_classes == num_classes)


def with_source_options(model: Model, translation: Translation, report: LoadReport) -> Model:
    """Return the model, or one on the meta device with the config options that the weights' source requires."""
    changed = {name: value for name, value in translation.options.items() if getattr(model.config, name) != value}
    if not changed:
        return model
    report.notes += [f"set {name}={value!r} as in {translation.source}" for name, value in changed.items()]
    return files.build_on_meta(model.config.override(**changed), translation.source, model.edits)


def replace_modules(model: Model, target: Model) -> None:
    """Replace the modules of a model whose types differ from ``target``; their values stay uninitialized."""
    if target.config == model.config:
        return
    like = next(model.parameters())
    for name, module in target.named_children():
        if type(module) is not type(model.get_submodule(name)):
            setattr(model, name, module.to_empty(device=like.device).to(like.dtype).train(model.training))
    model.config = target.config


def check_edits(model: Model, file: WeightsFile, where: str) -> None:
    """Refuse weights of an edited model for a model without these edits, whose outputs would differ."""
    if model.edits[: len(file.edits)] != file.edits:
        given = ", ".join(map(str, file.edits))
        raise ValueError(
            f"{where} requires a model with the edits {given}; load it with vt.load, or apply them to this model"
        )


def translate(model: Model, tensors: Mapping[str, Tensor]) -> Translation:
    """Rename tensors to Vitreous names with the key map and prefix that match most of the model's names."""
    known, maps = set(model.state_dict()), keymaps_of(model)
    counters = [name for name in tensors if name.rpartition(".")[2] in COUNTERS]
    best, most = Translation("Vitreous", {}), -1
    for names in strip_prefixes(name for name in tensors if name not in counters):
        stripped = {name: tensors[full] for name, full in names.items()}
        found = max(translations(stripped, maps), key=lambda found: len(known & found.tensors.keys()))
        if (num_known := len(known & found.tensors.keys())) > most:
            best, most = restore_full_names(found, names), num_known
        if not found.unmapped and found.tensors.keys() <= known:
            break
    best.unused.extend(counters)
    return best


def translations(tensors: dict[str, Tensor], maps: Iterable[KeyMap]) -> Iterator[Translation]:
    """Yield the tensors with unchanged names, then their translation by each key map."""
    yield Translation("Vitreous", dict(tensors), {name: name for name in tensors})
    for keymap in maps:
        yield keymap.translate(tensors)


def restore_full_names(found: Translation, names: Mapping[str, str]) -> Translation:
    """Restore the stripped prefixes in the file's names, and add a note about the prefix."""
    origin = {
        name: " + ".join(names.get(part, part) for part in joined.split(" + ")) for name, joined in found.origin.items()
    }
    unmapped, unused = ([names.get(name, name) for name in row] for row in (found.unmapped, found.unused))
    prefix = stripped_prefix(names)
    notes = [*found.notes, f"stripped the prefix {prefix!r} of the names"] if prefix else found.notes
    return replace(found, origin=origin, unmapped=unmapped, unused=unused, notes=notes)


def adopt_spec(model: Model, spec: Spec, *, keep_names: bool) -> None:
    """Adopt the weights' preprocessing at the model's image size; ``keep_names`` adopts class names and task too."""
    preprocess = replace(spec.preprocess, image_size=model.config.image_size)
    labels = spec.labels if keep_names and spec.labels.names else model.spec.labels
    task = spec.task if keep_names else model.spec.task
    model.spec = Spec(preprocess.with_channels(model.config.num_channels), labels, task)
