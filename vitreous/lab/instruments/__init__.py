"""What experiments measure with: counters, probes, curvature, real weights, comparisons of runs."""
