import torch
import torch.nn.functional as F


def waves(places, half):
    lengths = 10_000 ** (torch.arange(0, half, 2) / half)
    angles = places[:, None] / lengths
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def sincos(grid, dim):
    rows = torch.arange(grid[0]).repeat_interleave(grid[1])
    columns = torch.arange(grid[1]).repeat(grid[0])
    return torch.cat([waves(rows, dim // 2), waves(columns, dim // 2)], dim=1)


def resample(table, old_grid, new_grid, num_prefix):
    prefix, cells = table[:num_prefix], table[num_prefix:]
    image = cells.T.reshape(1, -1, *old_grid)
    image = F.interpolate(image, size=new_grid, mode="bicubic", antialias=True)
    return torch.cat([prefix, image[0].flatten(1).T])
