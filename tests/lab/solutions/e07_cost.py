def linear(a, b):
    return a * b + b


def parameters(image_size, patch_size, dim, depth, num_classes):
    tokens = (image_size // patch_size) ** 2 + 1
    norm = 2 * dim
    attention = 4 * linear(dim, dim)
    mlp = linear(dim, 4 * dim) + linear(4 * dim, dim)
    block = norm + attention + norm + mlp
    patches = linear(3 * patch_size**2, dim)
    head = linear(dim, num_classes)
    return patches + dim + tokens * dim + depth * block + norm + head


def macs(image_size, patch_size, dim, depth, num_classes):
    patches = (image_size // patch_size) ** 2
    n = patches + 1
    embedding = patches * 3 * patch_size**2 * dim
    projections = 4 * n * dim * dim
    attention = 2 * n * n * dim
    mlp = 8 * n * dim * dim
    head = dim * num_classes
    return embedding + depth * (projections + attention + mlp) + head
