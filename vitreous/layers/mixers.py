"""Registry of token mixers by name, with default options. A new mixer is one file, and one line here."""

from __future__ import annotations

from vitreous.layers.attention import FullAttention
from vitreous.layers.block_sparse import BlockSparse
from vitreous.layers.conv_projection import ConvProjection
from vitreous.layers.covariance import Covariance
from vitreous.layers.deformable import Deformable
from vitreous.layers.deformable_points import DeformablePoints
from vitreous.layers.depthwise import Depthwise
from vitreous.layers.local import Dilated, Local
from vitreous.layers.mixer import Mixer
from vitreous.layers.performer import Performer
from vitreous.layers.pooling import Pool
from vitreous.layers.reduction import Reduction
from vitreous.layers.rep_conv import RepConvMixer
from vitreous.layers.separable import Separable
from vitreous.layers.window import Window

MIXERS: dict[str, Mixer] = {
    mixer.name: mixer
    for mixer in (
        FullAttention(),
        Window(),
        Reduction(),
        ConvProjection(),
        Covariance(),
        Deformable(),
        DeformablePoints(),
        Performer(),
        Local(),
        Dilated(),
        BlockSparse(),
        RepConvMixer(),
        Depthwise(),
        Pool(),
        Separable(),
    )
}
