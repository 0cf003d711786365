"""The units into which a model's weights are divided, so that a model larger than its GPU can page them.

A *block* is read only while one module runs, and is copied in just before. The blocks of a *lane* are always used
together, one after another in their order: so two slots serve the whole lane, and the next block is known.
A *table* is only used for lookups: it can stay on the host, and only the rows looked up are copied. All other weights
stay on the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torch import Tensor, nn

from sonant.layers.embedding import Embedding
from sonant.layers.transformer import DecoderLayer, DecoderStack


@dataclass(frozen=True, eq=False)
class WeightBlock:
    name: str
    lane: str
    call: nn.Module  # the block is read only while this module is called
    holds: tuple[nn.Module, ...]  # the modules whose weights it consists of
    reads: float = 0.0  # how often a decode step reads it; 0: only prompts or clips need it
    aside: bool = False  # used by other threads than the step thread

    def tensors(self) -> list[HeldTensor]:
        return list(held_tensors(self.holds))


@dataclass(frozen=True, eq=False)
class LookupTable:
    name: str
    embedding: Embedding
    reads: float = 0.0  # 1 if decode steps use it, else 0

    def tensors(self) -> list[HeldTensor]:
        return list(held_tensors((self.embedding,)))


@dataclass(frozen=True, eq=False)
class HeldTensor:
    """A parameter or buffer, and how to put another tensor in its place."""

    owner: nn.Module
    name: str

    @property
    def value(self) -> Tensor:
        found = getattr(self.owner, self.name)
        assert isinstance(found, Tensor)
        return found.data if isinstance(found, nn.Parameter) else found

    def replace(self, value: Tensor) -> None:
        found = getattr(self.owner, self.name)
        if isinstance(found, nn.Parameter):
            found.data = value
        else:
            setattr(self.owner, self.name, value)


@dataclass(frozen=True, eq=False)
class ModelWeights:
    """All of a model's weights, and which of them can leave the device."""

    modules: tuple[nn.Module, ...]
    blocks: tuple[WeightBlock, ...] = ()  # within each lane in the order of their use
    tables: tuple[LookupTable, ...] = ()

    @property
    def movable(self) -> tuple[WeightBlock | LookupTable, ...]:
        return *self.blocks, *self.tables

    @property
    def total_bytes(self) -> int:
        """Tensors that share memory count once."""
        storages = {}
        for held in held_tensors(self.modules):
            storage = held.value.untyped_storage()
            storages[storage._cdata] = storage.nbytes()
        return sum(storages.values())


def held_tensors(modules: Iterable[nn.Module]) -> Iterator[HeldTensor]:
    """All parameters and buffers, in the order in which modules have them."""
    for module in modules:
        for part in module.modules():
            yield from (HeldTensor(part, name) for name, value in part._parameters.items() if value is not None)
            yield from (HeldTensor(part, name) for name, value in part._buffers.items() if value is not None)


def stack_blocks(stack: DecoderStack, lane: str, reads: float) -> list[WeightBlock]:
    """A block for each layer. Norms are small and stay on the device: some are read before their layer is called."""
    blocks = []
    for n, layer in enumerate(stack.layers):
        assert isinstance(layer, DecoderLayer)
        blocks.append(WeightBlock(f"{lane} {n}", lane, layer, (layer.self_attn, layer.mlp), reads))
    return blocks


def encoder_lane(modules: Iterable[nn.Module], lane: str) -> list[WeightBlock]:
    """A block for each module of an encoder, with all its weights. Clips are encoded on other threads than steps."""
    return [WeightBlock(f"{lane} {n}", lane, m, (m,), aside=True) for n, m in enumerate(modules)]
