"""Measurement tools of the experiments: counters, probes, curvature, pretrained models, comparisons of runs."""
