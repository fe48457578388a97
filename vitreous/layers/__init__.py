"""Layers: tensor in, tensor out, independent of any model."""
