"""Claims tested in every ``make test``."""

#: Fast claims that cover many parts; `make test-all` runs the others.
OFTEN = {
    "diagonal_query", "temperature", "permutation", "dot_product_variance", "attention_macs", "quadratic_term",
    "activation_memory", "doubled_side", "window_cost", "layer_norm", "drop_path", "cutmix", "cosine_schedule",
    "relative_bias", "distillation_loss", "truncated_normal", "attention_distance", "rollout", "shifted_windows",
    "performer", "cross_covariance", "deformable", "local_attention", "spatial_reduction", "batch_first",
    "norm_placement", "low_pass", "softmax_saturation",
}  # fmt: skip
