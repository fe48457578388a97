"""Key maps for CvT weights of transformers and the original repository."""

from __future__ import annotations

from vitreous.models.cvt import CvTConfig
from vitreous.weights.keymaps import KeyMap, Name

PARTS = {"q": "query", "k": "key", "v": "value"}


def transformers() -> tuple[tuple[str, Name], ...]:
    stage, embed = "encoder.stages.{i}", "encoder.stages.{i}.embedding.convolution_embeddings"
    layer, native = f"{stage}.layers.{{j}}", "stages.{i}.blocks.{j}"
    projections: list[tuple[str, Name]] = []
    for part, name in PARTS.items():
        conv = f"{layer}.attention.attention.convolution_projection_{name}.convolution_projection"
        projections += [
            (f"{native}.mixer.{part}.conv.weight", f"{conv}.convolution.weight"),
            (f"{native}.mixer.{part}.norm.{{rest}}", f"{conv}.normalization.{{rest}}"),
            (f"{native}.mixer.{part}.linear.{{p}}", f"{layer}.attention.attention.projection_{name}.{{p}}"),
        ]
    return (
        ("class_token", r"encoder.stages.\d+.cls_token"),
        ("stages.{i}.downsample.conv.{p}", f"{embed}.projection.{{p}}"),
        ("stages.{i}.downsample.norm.{p}", f"{embed}.normalization.{{p}}"),
        (f"{native}.norm1.{{p}}", f"{layer}.layernorm_before.{{p}}"),
        *projections,
        (f"{native}.mixer.proj.{{p}}", f"{layer}.attention.output.dense.{{p}}"),
        (f"{native}.norm2.{{p}}", f"{layer}.layernorm_after.{{p}}"),
        (f"{native}.mlp.fc1.{{p}}", f"{layer}.intermediate.dense.{{p}}"),
        (f"{native}.mlp.fc2.{{p}}", f"{layer}.output.dense.{{p}}"),
        ("norm.{p}", "layernorm.{p}"),
        ("head.{p}", "classifier.{p}"),
    )


def original() -> tuple[tuple[str, Name], ...]:
    layer, native = "stage{i}.blocks.{j}", "stages.{i}.blocks.{j}"
    projections: list[tuple[str, Name]] = []
    for part in PARTS:
        projections += [
            (f"{native}.mixer.{part}.conv.weight", f"{layer}.attn.conv_proj_{part}.conv.weight"),
            (f"{native}.mixer.{part}.norm.{{rest}}", f"{layer}.attn.conv_proj_{part}.bn.{{rest}}"),
            (f"{native}.mixer.{part}.linear.{{p}}", f"{layer}.attn.proj_{part}.{{p}}"),
        ]
    return (
        ("class_token", r"stage\d+.cls_token"),
        ("stages.{i}.downsample.conv.{p}", "stage{i}.patch_embed.proj.{p}"),
        ("stages.{i}.downsample.norm.{p}", "stage{i}.patch_embed.norm.{p}"),
        *projections,
        (f"{native}.mixer.proj.{{p}}", f"{layer}.attn.proj.{{p}}"),
        (f"{native}.{{rest}}", f"{layer}.(?P<rest>(norm1|norm2|mlp.fc1|mlp.fc2).(weight|bias))"),
        ("norm.{p}", "norm.{p}"),
        ("head.{p}", "head.{p}"),
    )


TRANSFORMERS = KeyMap("transformers", transformers())
ORIGINAL = KeyMap("microsoft/CvT", original())


def keymaps(config: CvTConfig) -> tuple[KeyMap, ...]:
    return TRANSFORMERS, ORIGINAL
