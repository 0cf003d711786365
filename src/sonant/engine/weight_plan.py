"""Which weights stay on a GPU that cannot hold all of them, and what the others cost.

Weights that decode steps never read leave first, then those that cost a step least for the room they make: tables
before blocks, since only rows of a table travel. A lane loses no more blocks than it must, spread evenly, so that they
are copied while others compute. Those that leave take turns in the lane's two slots; a lane of which that would save
little is left alone. Lanes that are not the step thread's have slots only while they are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sonant.byte_size import rounded_up, shown
from sonant.errors import ConfigError
from sonant.models.weight_blocks import ModelWeights
from sonant.models.weights.host_memory import BlockLayout

SLOTS = 2
_ROWS_OF_A_TABLE = 0.001  # the share of its rows that a step looks up
_WORTH = 0.25  # the share of a lane that must be saved, or it is left alone


@dataclass(frozen=True)
class PlannedBlock:
    """A block or, without a lane, a table."""

    name: str
    lane: str | None
    size: int
    reads: float  # how often a decode step reads it
    aside: bool = False  # its lane is not the step thread's


@dataclass(frozen=True)
class WeightPlan:
    lanes: dict[str, tuple[PlannedBlock, ...]]  # blocks that are streamed, in the order of their use
    tables: tuple[PlannedBlock, ...]  # that stay on the host
    device_bytes: int  # of the weights that stay, and of the slots

    @property
    def host_names(self) -> frozenset[str]:
        return frozenset(b.name for b in (*self.tables, *(b for lane in self.lanes.values() for b in lane)))

    @property
    def host_bytes(self) -> int:
        return sum(b.size for b in (*self.tables, *(b for lane in self.lanes.values() for b in lane)))

    @property
    def step_bytes(self) -> float:
        """Bytes that must be copied to the device in a decode step, on average."""
        return sum(b.reads * b.size for lane in self.lanes.values() for b in travelling(lane))


def plan_weights(weights: ModelWeights, budget: int) -> WeightPlan | None:
    """None: everything stays."""
    return plan(planned_blocks(weights), fixed_bytes(weights), budget)


def fixed_bytes(weights: ModelWeights) -> int:
    """Bytes of the weights that must stay on the device."""
    movable = [held.value for part in weights.movable for held in part.tensors()]
    return max(0, weights.total_bytes - sum(t.numel() * t.element_size() for t in movable))


def planned_blocks(weights: ModelWeights) -> list[PlannedBlock]:
    sizes = [BlockLayout.of([held.value for held in b.tensors()]).total_bytes for b in weights.blocks]
    blocks = [
        PlannedBlock(b.name, b.lane, size, b.reads, b.aside) for b, size in zip(weights.blocks, sizes, strict=True)
    ]
    tables = [
        PlannedBlock(t.name, None, BlockLayout.of([h.value for h in t.tensors()]).total_bytes, t.reads)
        for t in weights.tables
    ]
    return [*blocks, *tables]


def plan(blocks: Sequence[PlannedBlock], fixed: int, budget: int) -> WeightPlan | None:
    """None: everything stays. `blocks` of a lane are in the order of their use; `fixed` are bytes that must stay."""
    on_device = fixed + sum(b.size for b in blocks)
    if on_device <= budget:
        return None
    least = least_bytes(blocks, fixed)
    if budget < least:
        slots = [f"{lane}: {shown(slot_bytes(group))}" for lane, group in lanes_of(blocks) if _saves(group)]
        raise ConfigError(
            f"gpu_weights of {shown(budget)} is too little: {shown(least - sum(map(slot_bytes, _paged(blocks))))} must "
            f"stay on the GPU, and slots for what comes and goes take the rest ({', '.join(slots) or 'none'}); the "
            f"least that works is {rounded_up(least)}"
        )
    lanes: dict[str, tuple[PlannedBlock, ...]] = {}
    tables: list[PlannedBlock] = []
    for group in _by_need(blocks):
        missing = on_device - budget
        if missing <= 0:
            break
        if group[0].lane is None:
            tables += group
            on_device -= group[0].size
        elif picked := pick(group, missing):
            lanes[group[0].lane] = tuple(picked)
            on_device -= sum(b.size for b in picked) - slot_bytes(picked)
    return WeightPlan(lanes, tuple(tables), on_device)


def least_bytes(blocks: Sequence[PlannedBlock], fixed: int) -> int:
    """The least that the device must hold: what stays if all that can leave does, and slots."""
    lanes = [slot_bytes(group) if _saves(group) else sum(b.size for b in group) for _, group in lanes_of(blocks)]
    return fixed + sum(lanes)


def slot_bytes(blocks: Sequence[PlannedBlock]) -> int:
    """Of the slots in which these blocks take turns, each as large as its largest block; aside they keep no memory."""
    if blocks[0].aside:
        return 0
    return sum(max((b.size for b in blocks[slot::SLOTS]), default=0) for slot in range(SLOTS))


def travelling(lane: Sequence[PlannedBlock]) -> list[PlannedBlock]:
    """The blocks that share their slot, since one that has a slot to itself stays there."""
    return [b for slot in range(SLOTS) for b in lane[slot::SLOTS] if len(lane[slot::SLOTS]) > 1]


def lanes_of(blocks: Iterable[PlannedBlock]) -> list[tuple[str, list[PlannedBlock]]]:
    lanes: dict[str, list[PlannedBlock]] = {}
    for block in blocks:
        if block.lane is not None:
            lanes.setdefault(block.lane, []).append(block)
    return list(lanes.items())


def pick(lane: Sequence[PlannedBlock], missing: int) -> list[PlannedBlock]:
    """Blocks that must leave to save `missing` bytes, less the slots; all, if no fewer are enough; none, if even all
    would save too little."""
    if not _saves(lane):
        return []
    total, smallest = sum(b.size for b in lane), min(b.size for b in lane)
    wanted = missing + SLOTS * smallest
    while wanted < total:
        picked = _spread(lane, wanted / total)
        if picked and sum(b.size for b in picked) - slot_bytes(picked) >= missing:
            return picked
        wanted += smallest
    return list(lane)


def _spread(lane: Sequence[PlannedBlock], share: float) -> list[PlannedBlock]:
    """Blocks with about this share of the bytes, spread evenly over the lane."""
    picked, due = [], 0.0
    for block in lane:
        due += share * block.size
        if due >= block.size / 2:
            picked.append(block)
            due -= block.size
    return picked


def _saves(lane: Sequence[PlannedBlock]) -> bool:
    """Whether a lane's leaving saves enough to be worth the copies."""
    return slot_bytes(lane) <= (1 - _WORTH) * sum(b.size for b in lane)


def _paged(blocks: Sequence[PlannedBlock]) -> list[list[PlannedBlock]]:
    return [group for _, group in lanes_of(blocks) if _saves(group)]


def _by_need(blocks: Sequence[PlannedBlock]) -> list[list[PlannedBlock]]:
    """Single tables and whole lanes, those that cost a step least first."""
    groups = [[b] for b in blocks if b.lane is None] + [group for _, group in lanes_of(blocks)]
    return sorted(groups, key=lambda group: (_cost(group), group[0].lane is not None))


def _cost(group: Sequence[PlannedBlock]) -> float:
    """Bytes copied in a step for each byte saved, if the whole group leaves. Of a table only rows are copied."""
    if group[0].lane is None:
        return _ROWS_OF_A_TABLE * group[0].reads
    total = sum(b.size for b in group)
    return sum(b.reads * b.size for b in group) / max(1, total - slot_bytes(group))
