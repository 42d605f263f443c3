"""A Llama-family language model over packed sequences: the same forward trains and serves.

Knows token ids, positions, slots and caches; nothing of files, tokenizers, adapters' origin or requests.

Legend: T rows, D width, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from workers.kernels.linear_cross_entropy import linear_cross_entropy
from workers.kernels.lora_linear import frozen_linear
from workers.kernels.packed_weight import can_pack, pack_weight
from workers.kernels.rms_norm import rms_norm
from workers.models.batch import PackedBatch
from workers.models.cache import SequenceCache
from workers.models.config import ModelConfig
from workers.models.layers.block import BatchContext, Block
from workers.models.layers.linear import AdaptedLinear, make_route
from workers.models.layers.rope import rotation_of


class LanguageModel(nn.Module):
    """Embedding, blocks, final norm and a tied or untied head. Weights are uninitialised until they are loaded."""

    def __init__(self, config: ModelConfig, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
        vocabulary = (config.vocab_size, config.hidden_size)
        self.embedding_VD = nn.Parameter(torch.empty(vocabulary, device=device, dtype=dtype), requires_grad=False)
        self.blocks = nn.ModuleList(Block(config, i, device, dtype) for i in range(config.layers))
        self.norm_D = nn.Parameter(torch.empty(config.hidden_size, device=device, dtype=dtype), requires_grad=False)
        self.head_VD = self.embedding_VD
        if not config.tied_head:
            self.head_VD = nn.Parameter(torch.empty(vocabulary, device=device, dtype=dtype), requires_grad=False)
        self._packed_head: Tensor | None = None

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embedding_VD.device

    @property
    def dtype(self) -> torch.dtype:
        """The weights' and the residual stream's type."""
        return self.embedding_VD.dtype

    def linears(self) -> dict[str, AdaptedLinear]:
        """Every module an adapter may target, by Hugging Face module name."""
        return {m.name: m for block in self._blocks() for group in block.groups() for m in group.members}

    def weights(self) -> dict[str, Tensor]:
        """Every weight by Hugging Face tensor name, as views to copy into."""
        views = {f"{name}.weight": module.weight for name, module in self.linears().items()}
        for block in self._blocks():
            prefix = f"model.layers.{block.index}"
            views[f"{prefix}.input_layernorm.weight"] = block.input_norm_D
            views[f"{prefix}.post_attention_layernorm.weight"] = block.mlp_norm_D
        views |= {"model.embed_tokens.weight": self.embedding_VD, "model.norm.weight": self.norm_D}
        if not self.config.tied_head:
            views["lm_head.weight"] = self.head_VD
        return views

    def freeze(self) -> None:
        """Declare all weights final, so that packed copies can be made of them."""
        self.requires_grad_(False)
        for block in self._blocks():
            for group in block.groups():
                group.freeze()
        if can_pack(self.head_VD):
            self._packed_head = pack_weight(self.head_VD)

    def new_cache(self, capacity: int) -> SequenceCache:
        """Return an empty cache for one sequence of up to `capacity` tokens."""
        c = self.config
        shape = (c.layers, capacity, 2 * c.kv_heads, c.head_dim)
        return SequenceCache(torch.empty(shape, device=self.device, dtype=self.dtype))

    def hidden(self, batch: PackedBatch, caches: Sequence[SequenceCache] | None = None) -> Tensor:
        """Return the final normed hidden states [T, D].

        With caches (one per sequence, holding the tokens before the batch's), the batch's tokens are appended to them.
        Raises ValueError when a cache is too small.
        """
        lengths = batch.lengths
        if caches is not None:
            _check_caches(caches, lengths)
        context = BatchContext(
            lengths,
            rotation_of(batch.positions_T, self.config.head_dim, self.config.rope_theta, self.dtype),
            make_route(batch.slots, lengths, self.device),
            caches,
        )
        x_TD = embedding(batch.token_ids_T, self.embedding_VD)
        for block in self._blocks():
            x_TD = block(x_TD, context)
        for cache, length in zip(caches or (), lengths, strict=caches is not None):
            cache.length += length
        return rms_norm(x_TD, self.norm_D, self.config.norm_eps)

    def logits(self, hidden_TD: Tensor) -> Tensor:
        """Return logits [T, V] in float32 (float64 for a float64 model)."""
        logits_TV = frozen_linear(hidden_TD, self.head_VD, self._packed_head)
        return logits_TV.to(torch.promote_types(self.dtype, torch.float32))

    def nll(self, hidden_TD: Tensor, targets_T: Tensor) -> Tensor:
        """Return −log p(target) of each row [T] in float32, without holding all logits."""
        return linear_cross_entropy(hidden_TD, self.head_VD, targets_T, self._packed_head)

    def _blocks(self) -> list[Block]:
        return list(self.blocks)  # type: ignore[arg-type]


def _check_caches(caches: Sequence[SequenceCache], lengths: list[int]) -> None:
    if len(caches) != len(lengths):
        raise ValueError(f"{len(lengths)} sequences need as many caches, got {len(caches)}")
    for index, (cache, length) in enumerate(zip(caches, lengths, strict=True)):
        if cache.length + length > cache.capacity:
            raise ValueError(f"cache {index} holds {cache.length} of {cache.capacity} tokens; {length} more do not fit")
