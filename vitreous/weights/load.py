"""Weights into a model, whoever named them: find the key map, fit what can be fitted, refuse the rest."""

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
from vitreous.weights.formats import under_current_names
from vitreous.weights.keymaps import KeyMap, Translation, keymaps_of
from vitreous.weights.prefixes import prefix_of, unwrapped
from vitreous.weights.reading import WeightsFile

#: What torch's averaged models count beside the weights.
COUNTERS = ("n_averaged",)
UNDESCRIBED = "does not say which model it belongs to (not written by vt.save, or a config of your own)"


def load(source: str | os.PathLike[str], *, model: str | ModelConfig | None = None, **overrides: Any) -> Model:
    """A whole model: from a file that :func:`vitreous.save` wrote, a public weight by name, or others' files.

    It computes in float32 whatever the file's precision.

    >>> load("cat.safetensors")
    >>> load("runs/mine")                              # the model of a run, or a folder of transformers or timm
    >>> load("deit_tiny_16.in1k", num_classes=10)      # fetched once, then cached; a new head
    >>> load("deit.pth", model="deit_tiny_16")         # its number of classes is taken from the file
    """
    if is_name(source):
        return load_published(str(source), overrides)
    where, file = str(source), files.read(source)
    if file.foreign or file.config is None:
        return load_foreign(file, where, model, overrides)
    if model is not None:
        raise ValueError(f"{source} says itself which model it holds; leave out model={model!r}")
    return create(file.config.override(**overrides), file, where, assign=not overrides)


def create(config: ModelConfig, file: WeightsFile, where: str, *, head: str = "adapt", assign: bool = False) -> Model:
    """Build a model with a file's weights. What the file claims is checked before any memory is taken for it."""
    model = files.on_meta(config, where, file.edits)
    fitted = fit(model, file, where, head=head)
    assign = assign and is_all_stored(model)
    if not assign:
        model = rebuild(config, file.edits)
    put(model, fitted, file, assign=assign)
    return model


def is_all_stored(model: Model) -> bool:
    """Whether a file holds every tensor of a model: there are no buffers that it makes anew whenever it is built."""
    return {name for name, _ in model.named_buffers(remove_duplicate=False)} <= model.state_dict().keys()


def load_published(name: str, overrides: dict[str, Any]) -> Model:
    weights = published.find(name)
    config = find_config(weights.model).override(**weights.config)
    wanted = config.override(**overrides)
    same_head = wanted.num_classes == weights.num_classes
    file = replace(files.read(published.fetch(weights)), config=config, spec=weights.spec(), foreign=True)
    return create(wanted, file, name, head="strict" if same_head else "adapt")


def load_foreign(file: WeightsFile, where: str, model: str | ModelConfig | None, overrides: dict[str, Any]) -> Model:
    """The caller or a folder's description names the model; the number of classes is read off the tensors."""
    config = file.config if model is None else find_config(model)
    if config is None:
        raise ValueError(
            f"{where} {file.unknown or UNDESCRIBED}; "
            "name it with model='deit_tiny_16', on the command line with --model deit_tiny_16"
        )
    bias = translate(files.on_meta(config, where, file.edits), file.tensors).tensors.get("head.bias")
    num_classes = len(bias) if bias is not None and bias.ndim == 1 else 0
    config = config.override(num_classes=num_classes)
    file = replace(file, config=config if model is None else None)
    result = create(config.override(**overrides), file, where)
    if result.config.num_classes == num_classes == 1000 and not result.spec.labels.names:
        result.name_classes(published.imagenet_labels().names)
    return result


def is_name(source: str | os.PathLike[str]) -> bool:
    """``vit_tiny_16.augreg_in21k`` is a name; what is there, has a folder or a known ending is a path."""
    text = str(source)
    if isinstance(source, str) and published.is_published(text):
        return not os.path.lexists(text)
    endings = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".npz")
    return isinstance(source, str) and not os.path.lexists(text) and os.sep not in text and not text.endswith(endings)


def load_weights(
    model: Model,
    source: str | os.PathLike[str] | Mapping[str, Tensor],
    *,
    head: Literal["adapt", "strict"] = "adapt",
) -> LoadReport:
    """Copy weights into ``model``, under our names or those of timm, transformers, torchvision or the originals.

    ``source`` is a file, a folder, a state dict or the name of a public weight. What wrappers such as DDP put before
    names is taken away, positions are resampled to the model's grid and RGB filters adapted to its channels. When the
    number of classes differs the head stays fresh (``head="strict"`` makes that an error). Whatever else does not fit
    is an error that lists it, and then the model is left as it was.
    """
    if head not in ("adapt", "strict"):
        raise ValueError(f"head must be 'adapt' or 'strict', got {head!r}")
    if not isinstance(model, Backbone) and not holds_whole(model, source):
        report = load_weights(model.backbone, source, head=head)
        model.spec = replace(model.spec, preprocess=model.backbone.spec.preprocess)
        return report
    if isinstance(source, Mapping):
        return install(model, WeightsFile(dict(source)), "the given tensors", head=head)
    if is_name(source) and published.is_published(str(source)):
        known = published.find(str(source))
        report = install(model, files.read(published.fetch(known)), str(source), head=head)
        adopt_spec(model, known.spec(), keep_names=model.config.num_classes == known.num_classes)
        return report
    return install(model, files.read(source), str(source), head=head)


def holds_whole(model: Model, source: str | os.PathLike[str] | Mapping[str, Tensor]) -> bool:
    """Whether weights are those of such a model, and not of its backbone alone."""
    if isinstance(source, Mapping):
        return any(name in names for names in unwrapped(source) for name in model.state_dict())
    return not is_name(source) and holds_whole(model, files.read(source).tensors)


@dataclass(frozen=True)
class Fitted:
    """Tensors that a model takes as they are; ``meant`` is the model, or what its weights make of it."""

    tensors: dict[str, Tensor]
    meant: Model
    report: LoadReport


def install(model: Model, file: WeightsFile, where: str, *, head: str = "adapt") -> LoadReport:
    fitted = fit(model, file, where, head=head)
    put(model, fitted, file)
    return fitted.report


def fit(model: Model, file: WeightsFile, where: str, *, head: str = "adapt") -> Fitted:
    """Name a file's tensors as the model does, adapt what can be adapted, and refuse what does not fit."""
    check_edits(model, file, where)
    twin = files.on_meta(file.config, where, file.edits) if file.config is not None else None
    if twin is not None and not file.foreign:
        own = under_current_names(file.tensors, twin.state_dict())
        check_fit(twin, own, where)
        translation = Translation("Vitreous", own)
    else:
        translation = translate(model, file.tensors)
    report = LoadReport(translation.source, notes=[*file.notes, *translation.notes], unused=translation.unused)
    tensors, meant = dict(translation.tensors), as_meant(model, translation, report)
    wanted = meant.state_dict()
    check_dtypes(wanted, tensors, where)
    fit_head(meant, tensors, report, head=head)
    fit_channels(meant, tensors, report)
    fit_positions(meant, tensors, report, twin)
    check_fit(meant, tensors, where, translation, may_miss=report.fresh)
    report.num_loaded = len(tensors)
    return Fitted({name: tensor.to(wanted[name].dtype) for name, tensor in tensors.items()}, meant, report)


def put(model: Model, fitted: Fitted, file: WeightsFile, *, assign: bool = False) -> None:
    """Copy what was fitted to a model of this shape, and what the file says about images and classes."""
    take_parts(model, fitted.meant)
    tensors = fitted.tensors
    if assign:  # copied: a file that changes on the disk would change the model, or kill the process
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    model.load_state_dict(tensors, strict=False, assign=assign)
    if file.spec is not None and (file.config is not None or file.foreign):
        num_classes = len(file.spec.labels) if file.config is None else file.config.num_classes
        adopt_spec(model, file.spec, keep_names=model.config.num_classes == num_classes)


def as_meant(model: Model, translation: Translation, report: LoadReport) -> Model:
    """The model, or on the meta device one with the options that the weights' origin decides."""
    changed = {name: value for name, value in translation.options.items() if getattr(model.config, name) != value}
    if not changed:
        return model
    report.notes += [f"{name} is {value!r}, as {translation.source} has it" for name, value in changed.items()]
    return files.on_meta(model.config.override(**changed), translation.source, model.edits)


def take_parts(model: Model, meant: Model) -> None:
    """Give a model the parts in which it differs from what its weights mean, still without values."""
    if meant.config == model.config:
        return
    like = next(model.parameters())
    for name, part in meant.named_children():
        if type(part) is not type(model.get_submodule(name)):
            setattr(model, name, part.to_empty(device=like.device).to(like.dtype).train(model.training))
    model.config = meant.config


def check_edits(model: Model, file: WeightsFile, where: str) -> None:
    """Refuse weights of an edited model for one without these edits: it would compute something else."""
    if model.edits[: len(file.edits)] != file.edits:
        given = ", ".join(map(str, file.edits))
        raise ValueError(f"{where} holds a model with the edits {given}; load it with vt.load, or edit this one alike")


def translate(model: Model, tensors: Mapping[str, Tensor]) -> Translation:
    """The tensors under our names, by whichever key map explains most of them, below whatever wraps them."""
    ours, maps = set(model.state_dict()), keymaps_of(model)
    counters = [name for name in tensors if name.rpartition(".")[2] in COUNTERS]
    best, most = Translation("Vitreous", {}), -1
    for names in unwrapped(name for name in tensors if name not in counters):
        theirs = {name: tensors[whole] for name, whole in names.items()}
        found = max(readings(theirs, maps), key=lambda found: len(ours & found.tensors.keys()))
        if (num_known := len(ours & found.tensors.keys())) > most:
            best, most = under_whole_names(found, names), num_known
        if not found.unmapped and found.tensors.keys() <= ours:
            break
    best.unused.extend(counters)
    return best


def readings(theirs: dict[str, Tensor], maps: Iterable[KeyMap]) -> Iterator[Translation]:
    yield Translation("Vitreous", dict(theirs), {name: name for name in theirs})
    for keymap in maps:
        yield keymap.translate(theirs)


def under_whole_names(found: Translation, names: Mapping[str, str]) -> Translation:
    """The same with all that was taken from the file's names put back, and a note about it."""
    origin = {
        ours: " + ".join(names.get(one, one) for one in theirs.split(" + ")) for ours, theirs in found.origin.items()
    }
    unmapped, unused = ([names.get(name, name) for name in row] for row in (found.unmapped, found.unused))
    prefix = prefix_of(names)
    notes = [*found.notes, f"the prefix {prefix!r} was taken from their names"] if prefix else found.notes
    return replace(found, origin=origin, unmapped=unmapped, unused=unused, notes=notes)


def adopt_spec(model: Model, spec: Spec, *, keep_names: bool) -> None:
    """Preprocessing comes with the weights, at this model's size; class names and task only when the head came too."""
    preprocess = replace(spec.preprocess, image_size=model.config.image_size)
    labels = spec.labels if keep_names and spec.labels.names else model.spec.labels
    task = spec.task if keep_names else model.spec.task
    model.spec = Spec(preprocess.with_channels(model.config.num_channels), labels, task)
