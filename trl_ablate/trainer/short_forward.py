"""Decoding on a CPU: packed weights, and the forward pass of one token per row of known models.

A product of a few rows takes up to half of its time for the layout of its weights. oneDNN makes the
same product of weights that were packed once: a copy, which is made for one generation, in which no
weight changes. A model also spends much of its time on masks, configuration, and a copy of the
whole cache for each token. `ShortForward` does the arithmetic alone; attention of one query a row
is two products of matrices. It is used only for Llama and Qwen2 models whose every part is known,
without hooks or adapters, and `decoding.py` compares its first logits with the model's own.
"""

from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.cache_utils import DynamicLayer
from transformers.generation.utils import ALL_CACHE_NAMES

from trl_ablate.trainer.temporary import replaced

Product = Callable[[Tensor], Tensor]
LEAST = 2**17
"""Weights of a matrix from which packing pays: below, the call itself takes longer."""
HOMES = frozenset(f"transformers.models.{name}.modeling_{name}" for name in ("llama", "qwen2"))
"""Where the models that `ShortForward` computes, and their modules, are defined."""
ACTIVATIONS = "transformers.activations"
COMMON = frozenset((nn.Embedding, nn.Linear, nn.ModuleList, nn.SiLU))
CACHE = ALL_CACHE_NAMES[0]
"""The cache's name among a model's inputs and outputs: transformers 5.24 has another one."""
INPUTS = {"attention_mask", "position_ids", "logits_to_keep", CACHE, "use_cache"}
ROOM = 32
"""Columns by which a cache grows at least, when it is full."""


class Packed:
    """`functional.linear` with one weight, without gradient; in autocast's type, if that is on."""

    def __init__(self, weight: Tensor, bias: Tensor | None, rows: int):
        self._dtype = product_dtype(weight)
        packed = weight.detach().to(self._dtype)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(packed, rows)
        self._bias = None if bias is None else bias.detach().to(self._dtype)

    def __call__(self, x: Tensor) -> Tensor:
        x = x.to(self._dtype)
        return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")


def product(weight: Tensor, bias: Tensor | None, rows: int) -> Product:
    """The product of about `rows` rows with a weight: packed, where that is faster."""
    if gains(weight):
        return Packed(weight, bias, rows)
    return lambda x: functional.linear(x, weight, bias)


def product_dtype(weight: Tensor) -> torch.dtype:
    """That of autocast, but not bfloat16 where the processor has to imitate it: float32 is exact
    and takes a third of the time."""
    if not torch.is_autocast_enabled("cpu"):
        return weight.dtype
    dtype = torch.get_autocast_dtype("cpu")
    return torch.float32 if dtype == torch.bfloat16 and not has_bf16_products() else dtype


def gains(weight: Tensor) -> bool:
    """Whether packing this weight pays. oneDNN refuses bfloat16 on some processors without it."""
    types = (torch.float32, torch.bfloat16) if has_bf16_products() else (torch.float32,)
    return (
        type(weight.data) is Tensor  # not one that is spread over processes
        and weight.device.type == "cpu"
        and weight.numel() >= LEAST
        and torch.backends.mkldnn.is_available()
        and product_dtype(weight) in types
    )


def has_bf16_products() -> bool:
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


@contextmanager
def packed_weights(model: nn.Module, rows: int):
    """Let the linear layers of a model, adapters' included, use packed weights."""
    with ExitStack() as stack:
        linear: list[Any] = [one for one in model.modules() if type(one) is nn.Linear]
        for one in linear:
            if "forward" not in vars(one) and not torch.is_grad_enabled() and gains(one.weight):
                forward = Packed(one.weight, one.bias, rows)
                stack.enter_context(replaced(one, forward=forward))
        yield


class ShortForward:
    """The forward pass of one token per row, for a model that `may_be_short`.

    Args:
        inputs: of the model's own forward pass, after it has read the prompts.
        longest: length of the longest row at its end.
    """

    def __init__(self, model: Any, inputs: dict[str, Any], longest: int):
        self._inner, self._head = model.model, model.lm_head
        mask_MP = inputs["attention_mask"][:, :-1].bool()
        self._padding_MP = torch.zeros(mask_MP.shape).masked_fill_(~mask_MP, -torch.inf)
        """What is added to the scores of the prompts' columns."""
        self._length = mask_MP.size(1)
        """Columns of the cache."""
        self._positions_M = inputs["position_ids"][:, -1]
        self._layers = [
            Layer(layer, cached)
            for layer, cached in zip(self._inner.layers, inputs[CACHE].layers, strict=True)
        ]
        places = torch.arange(longest, device=mask_MP.device)[None]
        self._cos_LD, self._sin_LD = (
            table[0] for table in self._inner.rotary_emb(self._head.weight, places)
        )

    @torch.autocast("cpu", enabled=False)
    def logits(self, ids_ML: Tensor) -> Tensor:
        """In float32, but for the products of packed weights, which may be in bfloat16."""
        hidden_MH = functional.embedding(ids_ML[:, -1], self._inner.embed_tokens.weight)
        cos_M1D = self._cos_LD[self._positions_M][:, None]
        sin_M1D = self._sin_LD[self._positions_M][:, None]
        for layer in self._layers:
            hidden_MH = layer.forward(hidden_MH, cos_M1D, sin_M1D, self._length, self._padding_MP)
        self._length += 1
        self._positions_M = self._positions_M + 1
        hidden_MH = normalized(hidden_MH, self._inner.norm)
        return self._head(hidden_MH).float()

    def keep(self, kept_M: Tensor) -> None:
        self._padding_MP = self._padding_MP[kept_M]
        self._positions_M = self._positions_M[kept_M]
        for layer in self._layers:
            layer.keep(kept_M)


class Layer:
    """A decoder layer and its cache, which has room for more columns than are filled."""

    def __init__(self, layer: Any, cached: Any):
        self._layer = layer
        self._keys, self._values = cached.keys.float(), cached.values.float()
        projections = [layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj]
        biases = [one.bias for one in projections if one.bias is not None]
        self._project = product(
            torch.cat([one.weight for one in projections]),
            torch.cat(biases) if biases else None,
            len(self._keys),
        )

    def forward(
        self, hidden_MH: Tensor, cos_M1D: Tensor, sin_M1D: Tensor, length: int, padding_MP: Tensor
    ) -> Tensor:
        layer, attention = self._layer, self._layer.self_attn
        normed_MH = normalized(hidden_MH, layer.input_layernorm)
        heads_MAD = self._project(normed_MH).view(len(hidden_MH), -1, attention.head_dim)
        groups: int = attention.num_key_value_groups
        owners = heads_MAD.size(1) // (groups + 2)
        turned_MAD = heads_MAD[:, :-owners]
        turned_MAD = turned_MAD * cos_M1D + half_turned(turned_MAD) * sin_M1D
        self._grow(length)
        self._keys[:, :, length] = turned_MAD[:, -owners:]
        self._values[:, :, length] = heads_MAD[:, -owners:]
        keys_MALD, values_MALD = self._keys[:, :, : length + 1], self._values[:, :, : length + 1]
        asked_MAGD = turned_MAD[:, :-owners].view(len(hidden_MH), owners, groups, -1)
        scores_MAGL = asked_MAGD.mul(attention.scaling) @ keys_MALD.transpose(2, 3)
        scores_MAGL[..., : padding_MP.size(1)] += padding_MP[:, None, None]
        mixed = scores_MAGL.softmax(dim=-1) @ values_MALD
        hidden_MH = hidden_MH + attention.o_proj(mixed.reshape(len(hidden_MH), -1))
        normed_MH = normalized(hidden_MH, layer.post_attention_layernorm)
        return hidden_MH + layer.mlp(normed_MH)

    def _grow(self, length: int) -> None:
        if length == self._keys.size(2):
            more = (0, 0, 0, max(ROOM, length // 4))
            self._keys = functional.pad(self._keys, more)
            self._values = functional.pad(self._values, more)

    def keep(self, kept_M: Tensor) -> None:
        self._keys, self._values = self._keys[kept_M], self._values[kept_M]


def may_be_short(model: Any, inputs: dict[str, Any]) -> bool:
    """Whether `ShortForward` computes what this model computes: on a CPU, where it was measured,
    with rotary positions of the usual kind, attention to all tokens, and weights in float32."""
    modules = list(model.modules())
    home = type(model).__module__
    own = {type(one) for one in modules} - COMMON
    if home not in HOMES or not {one.__module__ for one in own} <= {home, ACTIVATIONS}:
        return False
    return (
        type(model).__name__.endswith("ForCausalLM")
        and inputs.keys() == INPUTS
        and product_dtype(model.lm_head.weight) in (torch.float32, torch.bfloat16)
        and inputs["position_ids"].dim() == 2
        and not any(own_forward(one) for one in modules if one is not model)
        and not any(map(hooked, modules))
        and {(one.device.type, one.dtype) for one in model.parameters()} == {("cpu", torch.float32)}
        and model.config._attn_implementation == "sdpa"
        and model.model.rotary_emb.rope_type == "default"
        and not (model.training and model.config.attention_dropout)
        and all(type(layer) is DynamicLayer for layer in inputs[CACHE].layers)
        and len({one.bias is None for one in projections(model)}) == 1
    )


def hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def own_forward(module: nn.Module) -> bool:
    """Whether somebody has replaced the forward pass of this module alone."""
    forward = vars(module).get("forward")
    return forward is not None and not isinstance(forward, Packed)


def projections(model: Any) -> list[nn.Linear]:
    attentions = [layer.self_attn for layer in model.model.layers]
    return [one for a in attentions for one in (a.q_proj, a.k_proj, a.v_proj)]


def normalized(x: Tensor, norm: Any) -> Tensor:
    return functional.rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)


def half_turned(x: Tensor) -> Tensor:
    """(a, b) becomes (-b, a), as rotary positions need it."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)
