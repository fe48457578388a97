"""timm's architecture names as aliases: ``vit_base_patch16_384`` is ``vit_base_16`` with ``image_size=384``.

Names that both libraries share (``convnext_tiny``, ``pvt_v2_b2``, ``resnet50`` …) need no alias.
"""

from __future__ import annotations

import re

SIZE = r"(?P<size>tiny|small|base|large|huge|giant|gigantic|nano|medium)"
PIXELS = r"_(?P<pixels>\d+)"

#: timm's pattern and the name here.
RULES: tuple[tuple[str, str], ...] = (
    (rf"vit_{SIZE}_patch(?P<patch>\d+){PIXELS}", "vit_{size}_{patch}"),
    (rf"vit_{SIZE}_patch14_dinov2", "dinov2_{size}_14"),
    (rf"vit_{SIZE}_patch14_reg4_dinov2", "dinov2_{size}_reg4_14"),
    (rf"deit_{SIZE}_patch(?P<patch>\d+){PIXELS}", "deit_{size}_{patch}"),
    (rf"deit_{SIZE}_distilled_patch(?P<patch>\d+){PIXELS}", "deit_{size}_distilled_{patch}"),
    (rf"vit_tiny_r_s16_p8{PIXELS}", "vit_tiny_r_s16"),
    (rf"vit_{SIZE}_r(?P<layers>\d+)_s(?P<stride>\d+){PIXELS}", "vit_{size}_r{layers}_s{stride}"),
    (rf"swin_{SIZE}_patch4_window7{PIXELS}", "swin_{size}"),
    (rf"swin_{SIZE}_patch4_window12{PIXELS}", "swin_{size}_384"),
    (rf"xcit_{SIZE}_(?P<depth>\d+)_p(?P<patch>\d+){PIXELS}", "xcit_{size}_{depth}_{patch}"),
    (rf"coatnet_(?P<size>nano|\d)_rw{PIXELS}", "coatnet_{size}_rw"),
)


def from_timm(name: str) -> tuple[str, int | None] | None:
    """Translate timm's name into ours and the image size that it states, or return None if it is not one of timm's.

    >>> from_timm("deit_tiny_patch16_224")
    ('deit_tiny_16', 224)
    """
    for pattern, ours in RULES:
        if match := re.fullmatch(pattern, name):
            parts = match.groupdict()
            pixels = parts.pop("pixels", None)
            return ours.format(**parts), int(pixels) if pixels else None
    return None
