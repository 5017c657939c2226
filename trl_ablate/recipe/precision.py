"""Check that the trained weights have enough precision for their updates.

Adam's first steps move a weight by about the learning rate, later ones by less. A floating-point
number with p bits of significand is rounded to the nearest, and half of its step at w is between
|w| 2^-(p+1) and |w| 2^-p: a smaller update does not change w. Typical weights of a language model
are about 0.02. So most updates are lost if

    learning_rate < 0.02 * 2^-(p+1)        3.9e-5 for bfloat16, 4.9e-6 for float16

Below this limit only small weights still change: 2 in 100 at a learning rate of 1e-6.
"""

from transformers.training_args import OptimizerNames
from trl import ModelConfig

from trl_ablate.config import AblationConfig

SIGNIFICAND_BITS = {"bfloat16": 8, "float16": 11}
TYPICAL_WEIGHT = 0.02


def smallest_learning_rate(dtype: str) -> float:
    """Below it most updates of weights of this type are lost; 0 for precise enough types."""
    bits = SIGNIFICAND_BITS.get(dtype)
    return 0.0 if bits is None else TYPICAL_WEIGHT * 2.0 ** -(bits + 1)


def precision_warnings(config: AblationConfig, model: ModelConfig) -> list[str]:
    """A warning if most updates of the trained weights are lost; only for optimizers whose updates
    are about as large as the learning rate."""
    optimizer = OptimizerNames(config.optim).value
    if "adam" not in optimizer and "lion" not in optimizer:
        return []
    dtype, why = trained_dtype(config, model)
    smallest = smallest_learning_rate(dtype)
    if config.learning_rate >= smallest:
        return []
    return [
        f"the trained weights are {dtype} ({why}), and learning_rate {config.learning_rate:g} is "
        f"below {smallest:.1e}, half a {dtype} step of a weight of {TYPICAL_WEIGHT}: most updates "
        "are rounded away; train float32 weights (dtype: float32, and bf16: true to compute in "
        "bfloat16)"
    ]


def trained_dtype(config: AblationConfig, model: ModelConfig) -> tuple[str, str]:
    """The type of the weights that the optimizer updates, and the setting that decides it."""
    if config.use_transformers_continuous_batching and (config.bf16 or config.fp16):
        cast = "bfloat16" if config.bf16 else "float16"
        return cast, "use_transformers_continuous_batching casts the policy to it"
    if model.use_peft:  # TRL chooses it for quantized models, PEFT for all others
        quantized = model.load_in_4bit or model.load_in_8bit
        return ("bfloat16", "adapters of a quantized model") if quantized else ("float32", "LoRA")
    given = config.model_init_kwargs if isinstance(config.model_init_kwargs, dict) else {}
    dtype = str(given.get("dtype", model.dtype)).removeprefix("torch.")
    if dtype in ("auto", "None"):
        return "bfloat16", f"dtype is {dtype}, and so most checkpoints are"
    return dtype, f"dtype is {dtype}"
