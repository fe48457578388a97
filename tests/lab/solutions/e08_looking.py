import torch


def entropy(weights):
    terms = torch.where(weights > 0, weights * weights.clamp(min=1e-30).log(), 0.0)
    return -terms.sum(dim=-1)


def mean_distance(weights, grid, num_prefix):
    y = torch.arange(grid[0]).repeat_interleave(grid[1])
    x = torch.arange(grid[1]).repeat(grid[0])
    distance = ((y[:, None] - y) ** 2 + (x[:, None] - x) ** 2).float().sqrt()
    cells = weights[:, num_prefix:, num_prefix:]
    cells = cells / cells.sum(dim=-1, keepdim=True)
    return (cells * distance).sum(dim=-1).mean(dim=-1)
