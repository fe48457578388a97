import torch


def rollout(layers):
    identity = torch.eye(layers[0].shape[-1])
    result = identity
    for layer in layers:
        step = (layer.mean(dim=1) + identity) / 2
        result = step @ result
    return result


def class_map(rolled, grid):
    return rolled[:, 0, 1:].reshape(-1, *grid)
