"""The process that holds the engine. It ends when its engine does: another one starts with a clean device."""

from __future__ import annotations

import gc
import shutil
import signal
import sys

from sonant.collector import freeze_what_is_alive
from sonant.serving.idle_memory import keep_scratch, share_arenas
from sonant.serving.processes.setup import Setup, run_child

_SWITCH_S = 0.00005  # how long any call of the step thread may wait for the GIL, while another handles messages


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.setswitchinterval(_SWITCH_S)
    share_arenas()
    keep_scratch()
    return run_child(_serve, when_orphaned=lambda setup: shutil.rmtree(setup.scratch, ignore_errors=True))


def _serve(setup: Setup) -> int:
    from sonant.engine.compiler import compiler_for
    from sonant.engine.early_context import begin_context, has_gpu
    from sonant.engine.start_note import StartNote

    m = setup.model
    begin_context(m.device)  # all of this before torch is imported, which takes seconds
    asked = (m.device, m.dtype, m.codec_dtype)
    note = StartNote.of(setup.folder, setup.engine, *asked) if has_gpu() else None
    compiler = compiler_for(m.device, setup.engine.compile_workers, note)
    gc.disable()  # All that is imported stays alive, and need not be traversed again and again.
    from sonant.engine.seats import Seats
    from sonant.engine.start_times import process_age_s
    from sonant.loading import load_engine
    from sonant.serving.channel.engine_port import EnginePort
    from sonant.serving.cpu_threads import use_threads
    from sonant.serving.limits.admission import Admission
    from sonant.serving.warm_up import warm_up

    gc.freeze()
    gc.enable()
    imports_s = process_age_s()
    seats, awake = None, setup.serving.awake_models
    if awake is not None:
        seats = Seats(setup.scratch, awake, str(setup.number))
    use_threads(m.threads, m.device)
    dtypes = (m.dtype, m.codec_dtype)
    given = (setup.folder, m.device, dtypes, setup.engine)
    engine = load_engine(*given, "int16", seats=seats, compiler=compiler, note=note)
    with engine:
        engine.start_times.came_before("imports", imports_s or 0.0)
        warm_up(engine)
        freeze_what_is_alive()
        port = EnginePort(engine, setup.channel, Admission(setup.serving), setup.restarts)
        signal.signal(signal.SIGTERM, lambda *_: engine.stop())
        engine.join()
        port.close()
        return 0 if engine.loop.failure is None else 1


if __name__ == "__main__":
    sys.exit(main())
