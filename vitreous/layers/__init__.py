"""Parts: tensor in, tensor out. Nothing here knows of any model."""
