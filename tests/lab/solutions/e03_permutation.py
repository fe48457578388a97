def equivariance_gap(layer, tokens, order):
    shuffled_first = layer(tokens[:, order])
    shuffled_after = layer(tokens)[:, order]
    return (shuffled_first - shuffled_after).abs().max().item()


def invariance_gap(layer, tokens, order):
    return (layer(tokens[:, order]) - layer(tokens)).abs().max().item()
