"""A language model over packed sequences, built from a list of layer specs: the same forward trains and serves.

Knows token ids, positions, slots and caches; nothing of files, tokenizers, adapters' origin or requests.

Legend: T rows, D width, V vocabulary.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from workers.kernels.rms_norm import rms_norm
from workers.models.batch import PackedBatch
from workers.models.cache import SequenceCache
from workers.models.config import LayerSpec, ModelConfig
from workers.models.layers.context import BatchContext, make_context
from workers.models.layers.linear import AdaptedLinear
from workers.models.layers.mixer import Mixer
from workers.models.layers.places import Places
from workers.models.layers.registry import build_mixer
from workers.models.layers.rope import rotation_of
from workers.models.layers.vocabulary import Vocabulary
from workers.models.weight import Weight, new_weight


class Sublayer:
    """A mixer behind its norm. `number` is its place among all sublayers, which a cache's states follow."""

    __slots__ = ("mixer", "norm", "number")

    def __init__(self, norm: Weight, mixer: Mixer, number: int) -> None:
        self.norm, self.mixer, self.number = norm, mixer, number


class LanguageModel:
    """Embedding, layers, final norm and head. Weights are uninitialised until they are loaded.

    `dense_slots` are the slots that have dense tensors of their own, `places.apart` those whose factors are not to be
    stacked; who fills slots says so there.
    """

    def __init__(self, config: ModelConfig, device: torch.device, dtype: torch.dtype) -> None:
        self.config = config
        self.device, self.dtype = device, dtype
        self.vocabulary = Vocabulary(config, device, dtype)
        self.layers: list[list[Sublayer]] = []
        for layer in config.layers:
            self.layers.append(self._build(layer, sum(map(len, self.layers))))
        self.final_norm = None if config.final_norm is None else self._norm(config.final_norm)
        self.dense_slots: set[int] = set()
        self.places = Places(device)

    def _build(self, layer: LayerSpec, first: int) -> list[Sublayer]:
        width = self.config.hidden_size
        return [
            Sublayer(self._norm(s.norm), build_mixer(s.mixer, width, s.prefix, self.device, self.dtype), first + i)
            for i, s in enumerate(layer)
        ]

    def _norm(self, name: str) -> Weight:
        return new_weight(f"{name}.weight", (self.config.hidden_size,), self.device, self.dtype)

    def sublayers(self) -> list[Sublayer]:
        """Return the sublayers of all layers in order."""
        return [sublayer for layer in self.layers for sublayer in layer]

    def linears(self) -> dict[str, AdaptedLinear]:
        """Every linear module an adapter may target, by Hugging Face module name."""
        return {m.name: m for s in self.sublayers() for group in s.mixer.groups() for m in group.members}

    def adaptable(self) -> dict[str, AdaptedLinear | Vocabulary]:
        """Every module that can carry a low-rank term: the linear ones and the embedding."""
        return {**self.linears(), self.vocabulary.name: self.vocabulary}

    def weights(self) -> dict[str, Weight]:
        """Every weight by Hugging Face tensor name."""
        found = self.vocabulary.weights()
        for sublayer in self.sublayers():
            found.append(sublayer.norm)
            found += [weight for group in sublayer.mixer.groups() for weight in group.weights()]
            found += sublayer.mixer.weights()
        if self.final_norm is not None:
            found.append(self.final_norm)
        return {weight.name: weight for weight in found}

    def freeze(self) -> None:
        """Declare all base weights final, so that packed copies can be made of them."""
        for sublayer in self.sublayers():
            for group in sublayer.mixer.groups():
                group.freeze()
        self.vocabulary.freeze()

    def new_cache(self, capacity: int) -> SequenceCache:
        """Return an empty cache for one sequence of up to `capacity` tokens."""
        return SequenceCache([s.mixer.new_state(capacity) for s in self.sublayers()], capacity)

    def state_bytes(self, capacity: int) -> int:
        """Return how many bytes such a cache takes at most."""
        return sum(s.mixer.state_bytes(capacity) for s in self.sublayers())

    def hidden(
        self, batch: PackedBatch, caches: Sequence[SequenceCache] | None = None, *, recompute: bool = False
    ) -> Tensor:
        """Return the final normed hidden states [T, D].

        With caches (one per sequence, holding the tokens before the batch's), the batch's tokens are appended to them.
        With `recompute` and no caches, the backward pass computes each layer again and only the layers' inputs are kept
        until then; gradients are the same. Raises ValueError when a cache is too small.
        """
        if caches is not None:
            _check_caches(caches, batch.lengths)
        x_TD, context = self.start(batch)
        for number, layer in enumerate(self.layers):
            if recompute and caches is None:
                again = checkpoint(self.layer, number, x_TD, context, use_reentrant=False, preserve_rng_state=False)
                x_TD = cast(Tensor, again)
            else:
                x_TD = self._layer(layer, x_TD, context, caches)
        for cache, length in zip(caches or (), batch.lengths, strict=caches is not None):
            cache.length += length
        return self.finish(x_TD, context)

    def start(self, batch: PackedBatch) -> tuple[Tensor, BatchContext]:
        """Return the residual stream before the first layer [T, D], and what every layer needs of the batch.

        With `layer` and `finish` this is `hidden` in pieces, for a caller that goes layer by layer.
        """
        lengths, rope = batch.lengths, self.config.rope
        rotation = None if rope is None else rotation_of(batch.positions_T, rope.inverse_frequencies, self.dtype)
        places = None if torch.is_grad_enabled() else self.places
        context = make_context(batch.slots, lengths, rotation, dense=self.dense_slots, places=places)
        x_TD = self.vocabulary.lookup(batch.token_ids_T, context)
        if self.config.wide_residual:
            x_TD = x_TD.to(torch.promote_types(self.dtype, torch.float32))
        return x_TD, context

    def layer(
        self, number: int, x_TD: Tensor, context: BatchContext, caches: Sequence[SequenceCache] | None = None
    ) -> Tensor:
        """Return the residual stream after layer `number` [T, D]; caches are appended to."""
        return self._layer(self.layers[number], x_TD, context, caches)

    def finish(self, x_TD: Tensor, context: BatchContext) -> Tensor:
        """Return the final normed hidden states [T, D] of the residual stream after the last layer."""
        return x_TD.to(self.dtype) if self.final_norm is None else self._normed(x_TD, self.final_norm, context)

    def _layer(
        self, layer: list[Sublayer], x_TD: Tensor, context: BatchContext, caches: Sequence[SequenceCache] | None
    ) -> Tensor:
        multiplier = self.config.residual_multiplier
        for sublayer in layer:
            states = None if caches is None else [cache.states[sublayer.number] for cache in caches]
            normed_TD = self._normed(x_TD, sublayer.norm, context)
            added_TD = sublayer.mixer.forward(normed_TD, context, states)
            x_TD = x_TD + (added_TD if multiplier == 1 else added_TD * multiplier)
        return x_TD

    def _normed(self, x_TD: Tensor, norm: Weight, context: BatchContext) -> Tensor:
        eps, wide = self.config.norm_eps, self.config.wide_residual

        def normed(part_TD: Tensor, slot: int) -> Tensor:
            result_TD = rms_norm(part_TD, norm.of(slot).to(part_TD.dtype), eps)
            return result_TD.to(self.dtype) if wide else result_TD

        return context.by_part([norm], x_TD, normed)

    def logits(self, hidden_TD: Tensor, slots: Sequence[int] = ()) -> Tensor:
        """Return logits [T, V] in float32 (float64 for a float64 model); `slots` are the rows' (none: the base)."""
        return self.vocabulary.logits(hidden_TD, slots)

    def nll(self, hidden_TD: Tensor, targets_T: Tensor, slot: int | Sequence[int] = -1) -> Tensor:
        """Return −log p(target) of each row [T] in float32, without holding all logits; `slot` of all rows or of each.

        Rows of a slot should be neighbours.
        """
        return self.vocabulary.nll(hidden_TD, targets_T, [slot] * len(targets_T) if isinstance(slot, int) else slot)


def _check_caches(caches: Sequence[SequenceCache], lengths: list[int]) -> None:
    if len(caches) != len(lengths):
        raise ValueError(f"{len(lengths)} sequences need as many caches, got {len(caches)}")
    for index, (cache, length) in enumerate(zip(caches, lengths, strict=True)):
        if cache.length + length > cache.capacity:
            raise ValueError(f"cache {index} holds {cache.length} of {cache.capacity} tokens; {length} more do not fit")
