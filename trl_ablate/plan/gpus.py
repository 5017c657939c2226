"""Cards by name, as their data sheets give them; and two CPU cores, as they were measured."""

from dataclasses import dataclass

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
