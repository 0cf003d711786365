#!/usr/bin/env bash
# All stages that need the GPU, as far as possible side by side, for a machine that is lent by the minute:
#
#     training/all_stages.sh /tmp/teachers /tmp/work runs/today 2.6 10 9
#
# teachers (unpacked), a folder for what need not come home, a folder for what should, then the minutes for corpus,
# codec and talker. The codec starts on the corpus of the first 2.5 minutes, which has hours of every voice; once its codes
# are final, the talker learns them while the decoder goes on. Checkpoints in training/checkpoints are gone on from, and
# then the codec's encoder stays as it is there. Each stage leaves something whole. KEPT_CODES=folder: codes that the same
# encoder made of an earlier corpus are learnt too, and alone while this corpus is made; FIRST=n: the sentence at which
# this corpus begins; TALKER_CONFIG=file: instead of training/configs/talker.toml.
set -euo pipefail
if [ $# -ne 6 ]; then
    sed -n '2,13s/^# \{0,1\}//p' "$0"
    exit 2
fi
teachers=$1 work=$2 out=$3 corpus_minutes=$4 codec_minutes=$5 talker_minutes=$6
cd "$(dirname "$0")/.."
config=${TALKER_CONFIG:-training/configs/talker.toml}
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
talk() { # talker on the codes in $1 for $2 minutes, of all that it has
    # shellcheck disable=SC2046
    python3 -m training.talker.train --config "$config" --codes "$1" --codec "$out/speech_tokenizer" \
        --state "$work/talker-state" --out "$out/talker" --compile --no-listen --minutes "$2" \
        --total-minutes "$total" $([ -d "$work/talker-state" ] || resume talker)
}
export_codec() { python3 -m training.codec.export --checkpoint "$1" --out "$out/speech_tokenizer"; }

final=$(compgen -G "training/checkpoints/codec/*.safetensors" | head -n 1 || true) # its codes are
total=$talker_minutes
share_gpu
python3 -m training.corpus --teachers "$teachers" --out "$work/corpus" --minutes "$corpus_minutes" \
    --kokoro-processes 4 --workers 9 --first "${FIRST:-0}" > "$out/corpus.log" 2>&1 &
corpus=$!
early=
if [ -n "$final" ]; then
    export_codec training/checkpoints/codec > "$out/talker.log" 2>&1
    if [ -n "${KEPT_CODES:-}" ]; then
        total=$(python3 -c "print($talker_minutes + $corpus_minutes - 0.8)") # loading and saving are not learning
        talk "$KEPT_CODES" "$corpus_minutes" > "$out/talker-early.log" 2>&1 &
        early=$!
    fi
fi
sleep 150
# shellcheck disable=SC2046
python3 -m training.codec.train --corpus "$work/corpus" --state "$work/codec" --out "$out/codec" \
    --minutes "$codec_minutes" --total-minutes "$codec_minutes" $(resume codec --frozen) > "$out/codec.log" 2>&1 &
codec=$!
wait "$corpus"
if [ -z "$final" ]; then
    while [ ! -d "$out/codec/frozen" ] && kill -0 "$codec"; do sleep 1; done
    export_codec "$out/codec/frozen" > "$out/talker.log" 2>&1
fi
python3 -m training.encode --corpus "$work/corpus" --codec "$out/speech_tokenizer" --out "$out/codes" >> "$out/talker.log" 2>&1
if [ -n "${KEPT_CODES:-}" ]; then
    for file in "$KEPT_CODES"/codes-*.npz; do cp "$file" "$out/codes/codes-kept-$(basename "$file")"; done
fi
[ -z "$early" ] || wait "$early" || echo "the early talker failed: see $out/talker-early.log"
talk "$out/codes" "$talker_minutes" >> "$out/talker.log" 2>&1
wait "$codec"
