#!/usr/bin/env bash
# All stages that need the GPU, as far as possible side by side, for a machine that is lent by the minute:
#
#     training/all_stages.sh /tmp/teachers /tmp/work runs/today 2.6 12.5 8
#
# teachers (unpacked), a folder for what need not come home, a folder for what should, then the minutes for corpus,
# codec and talker. The codec starts on the corpus of the first 2.5 minutes, which has hours of every voice; once its codes
# are final, the talker learns them while the decoder goes on. Checkpoints in training/checkpoints are gone on from, and
# then the codec's encoder stays as it is there. Each stage leaves something whole. KEPT_CODES=folder: codes that the same
# encoder made of an earlier corpus are learnt too; FIRST=n: the sentence at which this corpus begins.
set -euo pipefail
if [ $# -ne 6 ]; then
    sed -n '2,12s/^# \{0,1\}//p' "$0"
    exit 2
fi
teachers=$1 work=$2 out=$3 corpus_minutes=$4 codec_minutes=$5 talker_minutes=$6
cd "$(dirname "$0")/.."
export PYTHONPATH="src:.${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
mkdir -p "$work" "$out"

share_gpu() { # processes then run side by side on the GPU instead of by turns
    command -v nvidia-cuda-mps-control > /dev/null || return 0
    nvidia-cuda-mps-control -d || return 0
    timeout 60 python3 -c "import torch; torch.ones(1, device='cuda').sum().item()" || echo quit | nvidia-cuda-mps-control
}
resume() { # the flag that goes on from a checkpoint in the repository, if there is one
    if compgen -G "training/checkpoints/$1/*.safetensors" > /dev/null; then echo "--resume training/checkpoints/$1 ${2:-}"; fi
}
talk() { # talker on the codes of the codec checkpoint $1, below $2
    python3 -m training.codec.export --checkpoint "$1" --out "$2/speech_tokenizer"
    python3 -m training.encode --corpus "$work/corpus" --codec "$2/speech_tokenizer" --out "$2/codes"
    if [ -n "${KEPT_CODES:-}" ]; then
        for file in "$KEPT_CODES"/codes-*.npz; do cp "$file" "$2/codes/codes-kept-$(basename "$file")"; done
    fi
    # shellcheck disable=SC2046
    python3 -m training.talker.train --codes "$2/codes" --codec "$2/speech_tokenizer" --state "$work/talker-state" \
        --out "$2/talker" --compile --no-listen "${@:3}" $(resume talker)
}
rehearse() { # fills the compiler's cache, and finds out early what is broken
    compgen -G "training/checkpoints/codec/*.safetensors" > /dev/null || return 0
    talk training/checkpoints/codec "$work/rehearsal" --minutes 4 --steps 3
    rm -rf "$work/talker-state"
}

share_gpu
python3 -m training.corpus --teachers "$teachers" --out "$work/corpus" --minutes "$corpus_minutes" \
    --kokoro-processes 4 --workers 10 --first "${FIRST:-0}" > "$out/corpus.log" 2>&1 &
corpus=$!
sleep 150
# shellcheck disable=SC2046
python3 -m training.codec.train --corpus "$work/corpus" --state "$work/codec" --out "$out/codec" \
    --minutes "$codec_minutes" --total-minutes "$codec_minutes" $(resume codec --frozen) > "$out/codec.log" 2>&1 &
codec=$!
rehearse > "$out/rehearsal.log" 2>&1 || echo "the rehearsal failed: see $out/rehearsal.log"
wait "$corpus"
while [ ! -d "$out/codec/frozen" ] && kill -0 "$codec"; do sleep 1; done
talk "$out/codec/frozen" "$out" --minutes "$talker_minutes" --total-minutes "$talker_minutes" > "$out/talker.log" 2>&1
wait "$codec"
