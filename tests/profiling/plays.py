"""What the imaginary engine does: clean steps, and steps with planted waste."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext

from profiling.scripted import ADD, ATTENTION, COPY_STREAM, FILL, GEMM, SAMPLE, Machine

Waste = Callable[[Machine], None]
LAYERS = 12
STEP = [(GEMM, 110.0), (ATTENTION, 60.0), ("_rms_norm", 30.0)] * LAYERS + [(GEMM, 150.0), (SAMPLE, 40.0)]


def zeros(m: Machine) -> None:
    with m.python("kv_cache.py(31): fresh"), m.op("aten::zeros"):
        m.kernel(FILL, 240.0, op="aten::fill_")


def item(m: Machine) -> None:
    with m.python("stop.py(12): stopped"), m.op("aten::item"), m.op("aten::_local_scalar_dense"):
        m.copy("DtoH", "Device", "Pageable", 4, 1.5)
        m.wait()


def pageable_copy(m: Machine) -> None:
    with m.python("lengths.py(8): upload"), m.op("aten::to"), m.op("aten::copy_"):
        m.copy("HtoD", "Pageable", "Device", 8 << 20, 700.0)


def chain(m: Machine) -> None:
    with m.python("snake.py(20): forward"):
        m.graph([(ADD, 2.5)] * 200, graph_id=9)


def allocation(m: Machine) -> None:
    with m.python("buffers.py(5): scratch"), m.op("aten::empty"):
        m.memory(64 << 20)
        m.wait("cudaStreamSynchronize")
        m.call("cudaMalloc", 900.0)


def pause(m: Machine) -> None:
    m.wait("cudaEventSynchronize")
    with m.python("loop.py(99): plan"), m.python("json/encoder.py(183): encode"):
        m.host += 2000.0


WASTE: dict[str, tuple[Waste, str, str]] = {
    # name: the waste, the rule that must report it, and the source that the report must name
    "zeros": (zeros, "fills", "kv_cache.py(31): fresh"),
    "item": (item, "syncs", "aten::item at stop.py(12): stopped"),
    "pageable copy": (pageable_copy, "pageable", "lengths.py(8): upload"),
    "chain": (chain, "chains", "snake.py(20): forward"),
    "allocation": (allocation, "allocations", "buffers.py(5): scratch"),
    "pause": (pause, "pauses", "json/encoder.py(183): encode"),
}


def steps(
    m: Machine,
    count: int = 20,
    wastes: Iterable[Waste] = (),
    *,
    graphs: bool = True,
    annotate: bool = True,
    label: str = "sonant.step rows=4 bucket=4 prefill=0 codec=4",
) -> Machine:
    """Launch each step while the one before still runs, as an engine should: the host then waits for the one before."""
    previous: float | None = None
    for _ in range(count):
        with m.range(label) if annotate else nullcontext(), m.python("runner.py(80): launch"):
            if graphs:
                m.graph(STEP)
            else:
                for name, us in STEP:
                    width = round((us * 1e-6 * 4.4e12 / 2) ** 0.5)  # as much as an H200 reads in that time
                    dims = [[4, width], [width, width]] if name == GEMM else None
                    m.kernel(name, us, op="aten::mm" if name == GEMM else "sonant::op", dims=dims)
            for waste in wastes:
                waste(m)
        done = m.free[7]
        m.free[COPY_STREAM] = done
        m.copy("DtoH", "Device", "Pinned", 4096, 2.0, stream=COPY_STREAM)
        if previous is not None:
            m.wait("cudaEventSynchronize", until=previous)
        previous = m.free[COPY_STREAM]
    return m


def start_up(m: Machine) -> Machine:
    """Fills a large cache once, captures, and waits."""
    with m.python("kv_cache.py(14): allocate"), m.op("aten::zeros"):
        for _ in range(20):
            m.kernel(FILL, 3000.0, op="aten::fill_")
    m.memset(1 << 30, 500.0)
    m.wait("cudaDeviceSynchronize")
    m.call("cudaStreamBeginCapture", 50.0)
    m.call("cudaGraphInstantiate", 5000.0)
    return m


def prefill(m: Machine, annotate: bool = True) -> Machine:
    with m.range("sonant.step rows=0 bucket=0 prefill=300 codec=0") if annotate else nullcontext():
        for _ in range(LAYERS):
            m.kernel("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", 300.0, op="aten::mm")
            m.kernel("_prefill_attention", 200.0)
    return m
