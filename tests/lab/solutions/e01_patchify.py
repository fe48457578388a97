import torch


def patchify(images: torch.Tensor, p: int) -> torch.Tensor:
    b, c, y, x = images.shape
    pieces = images.reshape(b, c, y // p, p, x // p, p)
    pieces = pieces.permute(0, 2, 4, 1, 3, 5)
    return pieces.reshape(b, (y // p) * (x // p), c * p * p)
