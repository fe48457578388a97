"""Published weights by name (``model.tag``): repository, license and preprocessing of each file.

A file is downloaded once, on first use, into the Hugging Face cache.
"""

from __future__ import annotations

import fnmatch
import importlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vitreous.models.timm_names import from_timm
from vitreous.options import did_you_mean
from vitreous.spec import HALF_PER_CHANNEL, IMAGENET_MEAN, IMAGENET_STD, Labels, Preprocess, Spec
from vitreous.weights.reading import first_line


@dataclass(frozen=True)
class Published:
    """A published weights file; ``model`` and ``config`` build its model."""

    name: str
    repo: str
    num_classes: int
    preprocess: Preprocess
    license: str = "apache-2.0"
    config: dict[str, Any] = field(default_factory=dict)
    filename: str = "model.safetensors"

    @property
    def model(self) -> str:
        return self.name.split(".")[0]

    def spec(self) -> Spec:
        return Spec(self.preprocess, imagenet_labels() if self.num_classes == 1000 else Labels())


def imagenet_labels() -> Labels:
    """Return the 1,000 class names of ImageNet-1k in the standard order, from torchvision."""
    from torchvision.models import ResNet18_Weights

    return Labels(tuple(ResNet18_Weights.IMAGENET1K_V1.meta["categories"]))


def imagenet_ids() -> tuple[str, ...]:
    """Return the WordNet ids of the ImageNet-1k classes, used as folder names, in label order."""
    lines = Path(__file__).with_name("imagenet_synsets.txt").read_text().splitlines()
    return tuple(f"n{number}" for line in lines if not line.startswith("#") for number in line.split())


def are_imagenet_labels(labels: Labels) -> bool:
    """Return whether labels are the ImageNet-1k class names: torchvision's, alone or in a list of synonyms."""
    if len(labels) != 1000:
        return False
    pairs = zip(imagenet_labels(), labels, strict=True)
    return sum(name in {part.strip() for part in label.split(",")} for name, label in pairs) > 900


HALF_NORM = (HALF_PER_CHANNEL, HALF_PER_CHANNEL)
IMAGENET_NORM = (IMAGENET_MEAN, IMAGENET_STD)


def timm(
    name: str,
    timm_name: str,
    norm: tuple[tuple[float, ...], tuple[float, ...]],
    *,
    size: int = 224,
    classes: int = 1000,
    **options: Any,
) -> Published:
    """Describe a file in timm's repositories: crop ratio 0.9 at 224 pixels, 1.0 at higher resolutions."""
    preprocess = Preprocess((size, size), crop_ratio=0.9 if size == 224 else 1.0, mean=norm[0], std=norm[1])
    config = {"image_size": size, "num_classes": classes}
    return Published(name, f"timm/{timm_name}", classes, preprocess, config=config, **options)


def augreg(model: str, tag: str, *, size: int = 224, own_tag: str | None = None, classes: int = 1000) -> Published:
    """Describe Google's ViT weights; timm's name of ``vit_base_16`` is ``vit_base_patch16_224``."""
    stem, patch = model.rsplit("_", 1)
    return timm(f"{model}.{own_tag or tag}", f"{stem}_patch{patch}_{size}.{tag}", HALF_NORM, size=size, classes=classes)


def meta(name: str, timm_name: str, **options: Any) -> Published:
    """Describe weights with ImageNet normalization, mostly Meta's."""
    return timm(name, timm_name, IMAGENET_NORM, **options)


def torchvision(model: str) -> Published:
    """Describe torchvision's first ResNet weights, hosted in timm's repositories."""
    config = {"image_size": 224, "num_classes": 1000}
    preprocess = Preprocess(interpolation="bilinear")
    repo, license = f"timm/{model}.tv_in1k", "bsd-3-clause"
    return Published(f"{model}.in1k", repo, 1000, preprocess, license=license, config=config)


def coatnet(size: str, tag: str, *, classes: int = 1000, crop_ratio: float = 0.95) -> Published:
    """Describe the CoAtNet weights of timm's author."""
    row = timm(f"coatnet_{size}_rw.{tag}", f"coatnet_{size}_rw_224.{tag}", HALF_NORM, classes=classes)
    return replace(row, preprocess=replace(row.preprocess, crop_ratio=crop_ratio))


def hybrid(model: str, tag: str, *, timm_name: str | None = None, size: int = 224, classes: int = 1000) -> Published:
    """Describe Google's hybrid ResNet-ViT weights; those for larger images have the size in their tag."""
    own_tag = tag if size == 224 else f"{tag}_{size}"
    return timm(f"{model}.{own_tag}", f"{timm_name or model}_{size}.{tag}", HALF_NORM, size=size, classes=classes)


def swin(model: str, tag: str, *, classes: int = 1000) -> Published:
    """Describe Microsoft's Swin weights; timm's names include the window size."""
    size, window = (384, 12) if model.endswith("_384") else (224, 7)
    timm_name = f"{model.removesuffix('_384')}_patch4_window{window}_{size}.{tag}"
    return timm(f"{model}.{tag}", timm_name, IMAGENET_NORM, size=size, classes=classes, license="mit")


def xcit(model: str, tag: str, *, size: int = 224) -> Published:
    """Describe Meta's XCiT weights (crop ratio 1); timm's name of ``xcit_tiny_12_16`` is ``xcit_tiny_12_p16_224``."""
    stem, patch = model.rsplit("_", 1)
    own_tag = tag if size == 224 else f"{tag}_{size}"
    row = meta(f"{model}.{own_tag}", f"{stem}_p{patch}_{size}.fb_{tag}", size=size)
    return replace(row, preprocess=replace(row.preprocess, crop_ratio=1.0))


def convnext(model: str, tag: str, *, crop_ratio: float = 0.875) -> Published:
    """Describe Meta's and timm's ConvNeXt weights; the tag gives the classes and an image size above 224."""
    size = 384 if "384" in tag else 224
    classes = {"in12k": 11821, "in22k": 21841}.get(tag.split("_")[-1], 1000)
    row = timm(f"{model}.{tag}", f"{model}.{tag}", IMAGENET_NORM, size=size, classes=classes)
    return replace(row, preprocess=replace(row.preprocess, crop_ratio=crop_ratio if size == 224 else 1.0))


def snap(model: str) -> Published:
    """Describe Snap's EfficientFormer weights, trained with distillation."""
    row = meta(f"{model}.snap_dist_in1k", f"{model}.snap_dist_in1k")
    return replace(row, preprocess=replace(row.preprocess, crop_ratio=0.95))


def fastvit(model: str, tag: str) -> Published:
    """Describe Apple's FastViT weights, before their branches are fused."""
    row = meta(f"{model}.{tag}", f"{model}.{tag}", size=256, license="fastvit-license")
    return replace(row, preprocess=replace(row.preprocess, crop_ratio=0.95 if model == "fastvit_ma36" else 0.9))


def metaformer(model: str, tag: str, *, crop_ratio: float = 1.0) -> Published:
    """Describe Sea AI Lab's MetaFormer weights; the tag gives the classes and an image size above 224."""
    size = 384 if tag.endswith("384") else 224
    row = meta(f"{model}.{tag}", f"{model}.{tag}", size=size, classes=21841 if tag.endswith("in22k") else 1000)
    return replace(row, preprocess=replace(row.preprocess, crop_ratio=crop_ratio))


def mobilevit(size: str) -> Published:
    """Describe Apple's MobileViT weights; images are in [0, 1] without normalization."""
    name, no_norm = f"mobilevit_{size}.cvnets_in1k", ((0.0,) * 3, (1.0,) * 3)
    row = timm(name, name, no_norm, size=256, license="cvnets-license")
    return replace(row, preprocess=replace(row.preprocess, crop_ratio=0.9))


IN21K, FT = "augreg_in21k", "augreg_in21k_ft_in1k"

_ROWS = [
    augreg("vit_tiny_16", FT),
    augreg("vit_tiny_16", FT, size=384, own_tag=f"{FT}_384"),
    augreg("vit_tiny_16", IN21K, classes=21843),
    augreg("vit_small_16", "augreg_in1k"),
    augreg("vit_small_16", FT),
    augreg("vit_small_16", FT, size=384, own_tag=f"{FT}_384"),
    augreg("vit_small_16", IN21K, classes=21843),
    augreg("vit_small_32", FT),
    augreg("vit_small_32", FT, size=384, own_tag=f"{FT}_384"),
    augreg("vit_base_8", FT),
    augreg("vit_base_16", "augreg_in1k"),
    augreg("vit_base_16", FT),
    augreg("vit_base_16", FT, size=384, own_tag=f"{FT}_384"),
    augreg("vit_base_16", "augreg2_in21k_ft_in1k"),
    augreg("vit_base_16", "orig_in21k_ft_in1k"),
    augreg("vit_base_16", IN21K, classes=21843),
    augreg("vit_base_32", FT),
    augreg("vit_base_32", FT, size=384, own_tag=f"{FT}_384"),
    augreg("vit_large_16", FT),
    augreg("vit_large_16", FT, size=384, own_tag=f"{FT}_384"),
    augreg("vit_large_32", "orig_in21k_ft_in1k", size=384),
    augreg("vit_huge_14", "orig_in21k", classes=0),
    *(meta(f"deit_{size}_16.in1k", f"deit_{size}_patch16_224.fb_in1k") for size in ("tiny", "small", "base")),
    meta("deit_base_16.in1k_384", "deit_base_patch16_384.fb_in1k", size=384),
    *(
        meta(f"deit_{size}_distilled_16.in1k", f"deit_{size}_distilled_patch16_224.fb_in1k")
        for size in ("tiny", "small", "base")
    ),
    meta("deit_base_distilled_16.in1k_384", "deit_base_distilled_patch16_384.fb_in1k", size=384),
    meta("vit_small_8.dino", "vit_small_patch8_224.dino", classes=0),
    meta("vit_small_16.dino", "vit_small_patch16_224.dino", classes=0),
    meta("vit_base_8.dino", "vit_base_patch8_224.dino", classes=0),
    meta("vit_base_16.dino", "vit_base_patch16_224.dino", classes=0),
    meta("vit_base_16.mae", "vit_base_patch16_224.mae", classes=0, license="cc-by-nc-4.0"),
    meta("vit_large_16.mae", "vit_large_patch16_224.mae", classes=0, license="cc-by-nc-4.0"),
    *(
        meta(f"dinov2_{size}_{reg}14.lvd142m", f"vit_{size}_patch14_{reg}dinov2.lvd142m", size=518, classes=0)
        for size in ("small", "base", "large", "giant")
        for reg in ("", "reg4_")
    ),
    coatnet("nano", "sw_in1k", crop_ratio=0.9),
    coatnet("0", "sw_in1k"),
    coatnet("1", "sw_in1k"),
    coatnet("2", "sw_in12k", classes=11821),
    coatnet("2", "sw_in12k_ft_in1k"),
    coatnet("3", "sw_in12k", classes=11821),
    *(
        hybrid(model, tag, timm_name=timm_name, size=size, classes=classes)
        for model, timm_name in (
            ("vit_tiny_r_s16", "vit_tiny_r_s16_p8"),
            ("vit_small_r26_s32", None),
            ("vit_large_r50_s32", None),
        )
        for tag, size, classes in ((FT, 224, 1000), (FT, 384, 1000), (IN21K, 224, 21843))
    ),
    hybrid("vit_base_r50_s16", "orig_in21k", classes=0),
    hybrid("vit_base_r50_s16", "orig_in21k_ft_in1k", size=384),
    convnext("convnext_atto", "d2_in1k"),
    *(convnext(f"convnext_{size}", "d1_in1k") for size in ("femto", "pico")),
    convnext("convnext_nano", "d1h_in1k", crop_ratio=0.95),
    *(convnext("convnext_nano", tag) for tag in ("r384_in12k", "r384_ad_in12k", "r384_in12k_ft_in1k")),
    *(
        convnext(f"convnext_{size}", tag, crop_ratio=0.95)
        for size in ("nano", "tiny", "small")
        for tag in ("in12k", "in12k_ft_in1k")
    ),
    *(convnext(f"convnext_{size}", "in12k_ft_in1k_384") for size in ("tiny", "small")),
    *(convnext(f"convnext_{size}", "fb_in1k") for size in ("tiny", "small", "base", "large")),
    *(
        convnext(f"convnext_{size}", tag)
        for size in ("tiny", "small", "base", "large", "xlarge")
        for tag in ("fb_in22k", "fb_in22k_ft_in1k", "fb_in22k_ft_in1k_384")
    ),
    *(
        fastvit(f"fastvit_{size}", tag)
        for size in ("t8", "t12", "s12", "sa12", "sa24", "sa36", "ma36")
        for tag in ("apple_in1k", "apple_dist_in1k")
    ),
    *(snap(f"efficientformer_{size}") for size in ("l1", "l3", "l7")),
    *(metaformer(f"poolformer_{size}", "sail_in1k", crop_ratio=0.9) for size in ("s12", "s24", "s36")),
    *(metaformer(f"poolformer_{size}", "sail_in1k", crop_ratio=0.95) for size in ("m36", "m48")),
    *(metaformer(f"poolformerv2_{size}", "sail_in1k") for size in ("s12", "s24", "s36", "m36", "m48")),
    *(
        metaformer(f"{family}_{size}", f"sail_{tag}")
        for family in ("convformer", "caformer")
        for size in ("s18", "s36", "m36", "b36")
        for tag in ("in1k", "in1k_384", "in22k_ft_in1k", "in22k_ft_in1k_384", "in22k")
    ),
    *(mobilevit(size) for size in ("xxs", "xs", "s")),
    *(torchvision(f"resnet{layers}") for layers in (18, 34, 50, 101, 152)),
    *(swin(f"swin_{size}", "ms_in1k") for size in ("tiny", "small", "base", "base_384")),
    *(
        swin(f"swin_{size}", tag, classes=classes)
        for size in ("tiny", "small", "base", "large", "base_384", "large_384")
        for tag, classes in (("ms_in22k_ft_in1k", 1000), ("ms_in22k", 21841))
    ),
    *(meta(f"pvt_v2_{size}.in1k", f"pvt_v2_{size}.in1k") for size in ("b0", "b1", "b2", "b2_li", "b3", "b4", "b5")),
    *(
        xcit(f"xcit_{model}_{patch}", tag, size=size)
        for model in ("nano_12", "tiny_12", "small_12", "tiny_24", "small_24", "medium_24", "large_24")
        for patch in (16, 8)
        for tag, size in (("in1k", 224), ("dist_in1k", 224), ("dist_in1k", 384))
    ),
]
PUBLISHED: dict[str, Published] = {row.name: row for row in _ROWS}
#: The same files by timm's names, e.g. ``vit_base_patch16_224.augreg_in1k``.
TIMM_FILES: dict[str, Published] = {row.repo.removeprefix("timm/"): row for row in _ROWS}


def list_weights(pattern: str = "*") -> list[str]:
    """List the names of public weights that match a shell pattern, e.g. ``list_weights("deit*")``."""
    return [name for name in PUBLISHED if fnmatch.fnmatchcase(name, pattern)]


def strip_hub_prefix(name: str) -> str:
    """Strip the hub prefix of a timm file, e.g. of ``hf_hub:timm/vit_base_patch16_224.augreg_in1k``."""
    return name.removeprefix("hf_hub:").removeprefix("hf-hub:").removeprefix("timm/")


def is_published(name: str) -> bool:
    return name in PUBLISHED or strip_hub_prefix(name) in TIMM_FILES


def find(name: str) -> Published:
    """Find a published file by its Vitreous or timm name."""
    if strip_hub_prefix(name) in TIMM_FILES:
        return TIMM_FILES[strip_hub_prefix(name)]
    if name not in PUBLISHED:
        raise ValueError(
            f"{name!r} is neither a weights file nor the name of public weights{did_you_mean(name, PUBLISHED)} "
            "(vt.list_weights() lists all names)"
        )
    return PUBLISHED[name]


def find_default(model: str) -> Published:
    """Choose the default weights for ``pretrained=True``: those for ImageNet-1k if any, preferably at 224 pixels.

    ``model`` is a model's name, timm's alias of one, or the full name of a published file.
    """
    if is_published(model) or "." in model:  # has a tag
        return find(model)
    name, pixels = from_timm(model) or (model, None)
    rows = [row for row in PUBLISHED.values() if row.model == name]
    if pixels:
        rows = [row for row in rows if row.config.get("image_size") == pixels]
    if not rows:
        available = sorted({row.model for row in PUBLISHED.values()})
        raise ValueError(f"there are no public weights for {model!r}{did_you_mean(model, available)}")
    return max(rows, key=lambda row: row.num_classes == 1000)


def fetch(weights: Published) -> Path:
    """Return the path of a published file in the local cache; download it if it is not there yet."""
    hub = importlib.import_module("huggingface_hub")
    try:
        return Path(hub.hf_hub_download(weights.repo, weights.filename))
    except Exception as error:  # network, permission and naming errors are of many types
        raise ValueError(
            f"could not download {weights.name} from the Hugging Face hub ({weights.repo}): "
            f"{first_line(error).rstrip('.')}; connect to a network, or download {weights.filename} elsewhere and use "
            f"vt.load(path, model={weights.model!r}), on the command line the path with --model {weights.model}"
        ) from None
