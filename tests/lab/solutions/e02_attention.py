import torch


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    logits = q @ k.transpose(-2, -1)
    logits = logits / q.shape[-1] ** 0.5
    weights = logits.softmax(dim=-1)
    output = weights @ v
    return output, weights
