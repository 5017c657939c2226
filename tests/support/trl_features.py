"""Features of TRL that have to work with trimming, regrouping and resuming, each as settings."""

MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
BOUNDS = {"vllm_importance_sampling_clip_min": 0.9, "vllm_importance_sampling_clip_max": 1.2}

TERMS = {
    "entropy bonus": {"entropy_coef": 0.01},
    "adaptive entropy": {
        "use_adaptive_entropy": True,
        "entropy_coef": 0.01,
        "entropy_target": 5.0,
        "entropy_coef_delta": 0.01,
    },
    "top entropy quantile": {"top_entropy_quantile": 0.5},
    "off-policy mask": {"off_policy_mask_threshold": 0.01},
    "fp32 head": {"cast_lm_head_to_fp32": True},
}
CORRECTIONS = {mode: {"vllm_importance_sampling_mode": mode, **BOUNDS} for mode in MODES}
"""They need an engine, or a sampler that differs."""
