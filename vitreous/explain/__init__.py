"""Evidence about a model: tensors and numbers, without a drawing."""
