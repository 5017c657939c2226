"""Cards by name, as their data sheets give them (two CPU cores: as measured), and shapes of
decoders with gated MLPs and grouped queries, such as Qwen and Llama."""

from dataclasses import dataclass
from pathlib import Path

from trl_ablate.errors import ConfigurationError
from trl_ablate.run.json_files import read_object

GIB = 2.0**30


@dataclass(frozen=True)
class Gpu:
    """One card.

    Attributes:
        memory: bytes.
        bandwidth: bytes a second between the card and its memory.
        flops: dense bfloat16 operations a second, with sums in float32.
        link: bytes a second that a card sends to others of its machine, one way.
        source: where the numbers are from.
    """

    memory: float
    bandwidth: float
    flops: float
    link: float
    source: str


GPUS = {
    "rtx3090": Gpu(24 * GIB, 936e9, 71e12, 25e9, "NVIDIA Ampere GA102 whitepaper; PCIe 4"),
    "rtx4090": Gpu(24 * GIB, 1008e9, 165e12, 25e9, "NVIDIA Ada whitepaper; PCIe 4"),
    "rtx5090": Gpu(32 * GIB, 1792e9, 209e12, 50e9, "NVIDIA Blackwell RTX whitepaper; PCIe 5"),
    "l4": Gpu(24 * GIB, 300e9, 121e12, 25e9, "NVIDIA L4 data sheet; PCIe 4"),
    "l40s": Gpu(48 * GIB, 864e9, 362e12, 25e9, "NVIDIA L40S data sheet; PCIe 4"),
    "a100-40": Gpu(40 * GIB, 1555e9, 312e12, 300e9, "NVIDIA A100 data sheet; NVLink 3"),
    "a100": Gpu(80 * GIB, 2039e9, 312e12, 300e9, "NVIDIA A100 data sheet; NVLink 3"),
    "h100": Gpu(80 * GIB, 3350e9, 989e12, 450e9, "NVIDIA H100 SXM data sheet; NVLink 4"),
    "h200": Gpu(140 * GIB, 4800e9, 989e12, 450e9, "NVIDIA H200 SXM data sheet; NVLink 4"),
    "b200": Gpu(178 * GIB, 8000e9, 2250e12, 900e9, "NVIDIA B200 data sheet; NVLink 5"),
    "cpu": Gpu(
        8 * GIB, 20e9, 0.22e12, 5e9,
        "two cores, x86_64; the speed is fitted to one run, `trl-ablate bench train --uniform`",
    ),
    "cpu-bf16": Gpu(
        8 * GIB, 20e9, 0.5e12, 5e9,
        "two cores with AVX512-BF16; the speed is fitted to one run of SmolLM2-135M on words",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """A decoder. `tied`: the LM head is the embedding."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    vocabulary: int
    tied: bool
    head_size: int

    @property
    def queries(self) -> int:
        return self.heads * self.head_size

    @property
    def keys(self) -> int:
        """Width of the keys of a token, and of its values."""
        return self.kv_heads * self.head_size

    @property
    def embedding(self) -> int:
        return self.vocabulary * self.hidden

    @property
    def of_a_layer(self) -> int:
        """Parameters of one layer's matrices."""
        attention = 2 * self.hidden * (self.queries + self.keys)
        return attention + 3 * self.hidden * self.intermediate

    @property
    def parameters(self) -> int:
        """All parameters; norms and biases, below a thousandth, are left out."""
        return self.layers * self.of_a_layer + self.embedding * (1 if self.tied else 2)

    @property
    def kv_bytes(self) -> int:
        """Bytes of the KV cache of a token in bfloat16."""
        return 2 * 2 * self.layers * self.keys

    def adapter(self, rank: int) -> int:
        """Parameters of LoRA adapters of this rank on all matrices of all layers."""
        ends = [
            *[self.hidden + self.queries] * 2,
            *[self.hidden + self.keys] * 2,
            *[self.hidden + self.intermediate] * 3,
        ]
        return self.layers * rank * sum(ends)


MODELS = {
    "0.5B": Shape(24, 896, 4864, 14, 2, 151936, True, 64),
    "1B": Shape(16, 2048, 8192, 16, 16, 100352, False, 128),
    "1.5B": Shape(28, 1536, 8960, 12, 2, 151936, True, 128),
    "3B": Shape(36, 2048, 11008, 16, 2, 151936, True, 128),
    "7B": Shape(28, 3584, 18944, 28, 4, 152064, False, 128),
    "8B": Shape(32, 4096, 14336, 32, 8, 128256, False, 128),
    "14B": Shape(48, 5120, 13824, 40, 8, 152064, False, 128),
    "32B": Shape(64, 5120, 27648, 40, 8, 152064, False, 128),
    "72B": Shape(80, 8192, 29568, 64, 8, 152064, False, 128),
    "135M": Shape(30, 576, 1536, 9, 3, 49152, True, 64),
    "360M": Shape(32, 960, 2560, 15, 5, 49152, True, 64),
    "miniature": Shape(4, 128, 384, 4, 2, 299, True, 32),
}
"""1B is OLMo 2's, 8B Llama 3.1's; 135M and 360M are SmolLM2's; miniature is that of
`trl-ablate bench train`; the others are Qwen2.5's."""

KEYS = (
    "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size",
)  # fmt: skip
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
TIED = ("cohere", "gemma", "lfm2", "smollm3", "starcoder2", "vaultgemma")
"""Families of decoders whose embedding is the LM head where config.json does not say."""


def shape_of(name: str) -> Shape:
    """A shape by its name, or from a config.json or a folder that holds one."""
    named = {known.lower(): shape for known, shape in MODELS.items()}
    if name.lower() in named:
        return named[name.lower()]
    file = Path(name) / "config.json" if Path(name).is_dir() else Path(name)
    if not file.is_file():
        raise ConfigurationError(
            f"'{name}' is neither a known size ({', '.join(MODELS)}) nor a config.json; give one "
            "of them"
        )
    config = read_object(file)
    sizes = {key: config.get(key) for key in KEYS}
    sizes |= {key: config[key] for key in ("num_key_value_heads", "head_dim") if config.get(key)}
    wrong = [key for key, size in sizes.items() if type(size) is not int or size < 1]
    if wrong:
        raise ConfigurationError(
            f"{file} has no whole number for {wrong[0]}; give the config.json of a decoder such as "
            "Qwen2 or Llama"
        )
    if any(map(config.get, EXPERTS)):
        raise ConfigurationError(
            f"{file} is of a mixture of experts, which is not estimated; give a dense decoder"
        )
    layers, hidden, intermediate, heads, vocabulary = (config[key] for key in KEYS)
    kv_heads = config.get("num_key_value_heads") or heads
    tied = config.get("tie_word_embeddings", str(config.get("model_type")).startswith(TIED))
    head_size = config.get("head_dim") or hidden // heads
    return Shape(layers, hidden, intermediate, heads, kv_heads, vocabulary, bool(tied), head_size)
