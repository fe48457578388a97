import torch
from e01_patchify import patchify
from torch import nn

from vitreous.layers.attention import SelfAttention
from vitreous.layers.block import PreNormBlock
from vitreous.layers.mixer import MixerContext
from vitreous.layers.mlp import Mlp


class TinyViT(nn.Module):
    def __init__(self, image_size, patch_size, dim, depth, num_heads, num_classes):
        super().__init__()
        side = image_size // patch_size
        context = MixerContext(dim=dim, num_heads=num_heads, grid=(side, side))
        self.patch_size = patch_size
        self.project = nn.Linear(3 * patch_size * patch_size, dim)
        self.class_token = nn.Parameter(0.3 * torch.randn(1, 1, dim))
        self.positions = nn.Parameter(0.3 * torch.randn(1, 1 + side**2, dim))
        self.blocks = nn.ModuleList(PreNormBlock(dim, SelfAttention(context), Mlp(dim, 4 * dim)) for _ in range(depth))
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, num_classes)

    def forward(self, images):
        patches = self.project(patchify(images, self.patch_size))
        token = self.class_token.expand(len(images), -1, -1)
        x = torch.cat([token, patches], dim=1)
        x = x + self.positions
        for block in self.blocks:
            x = block(x, None)
        x = self.norm(x)
        return self.head(x[:, 0])


def train_step(model, optimizer, images, labels):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss.item()
