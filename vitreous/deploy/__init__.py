"""Inference: predictors, evaluation, accelerated engines and export."""
