"""Save and load model weights: Vitreous files, third-party files and published weights by name."""
