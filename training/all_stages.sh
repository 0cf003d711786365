#!/usr/bin/env bash
# All stages that need the GPU, one after the other, for a machine that is lent by the minute:
#
#     training/all_stages.sh /tmp/teachers /tmp/work runs/today 2.5 12 8
#
# teachers (unpacked), a folder for what need not come home, a folder for what should, then the minutes for corpus,
# codec and talker. Checkpoints in training/checkpoints are gone on from. Each stage leaves something whole, so a run
# that is cut off is not lost.
set -euo pipefail
if [ $# -ne 6 ]; then
    sed -n '2,9s/^# \{0,1\}//p' "$0"
    exit 2
fi
teachers=$1 work=$2 out=$3 corpus_minutes=$4 codec_minutes=$5 talker_minutes=$6
cd "$(dirname "$0")/.."
export PYTHONPATH=src:. PYTHONUNBUFFERED=1
mkdir -p "$work" "$out"

resume() { # the flag that goes on from a checkpoint in the repository, if there is one
    if compgen -G "training/checkpoints/$1/*.safetensors" > /dev/null; then echo "--resume training/checkpoints/$1"; fi
}

[ -d "$work/corpus" ] ||
    python3 -m training.corpus --teachers "$teachers" --out "$work/corpus" --minutes "$corpus_minutes"
# shellcheck disable=SC2046
python3 -m training.codec.train --corpus "$work/corpus" --state "$work/codec" --out "$out/codec" \
    --minutes "$codec_minutes" --total-minutes "$codec_minutes" $(resume codec)
python3 -m training.codec.export --checkpoint "$out/codec" --out "$work/speech_tokenizer"
python3 -m training.encode --corpus "$work/corpus" --codec "$work/speech_tokenizer" --out "$out/codes"
# shellcheck disable=SC2046
python3 -m training.talker.train --codes "$out/codes" --codec "$work/speech_tokenizer" --state "$work/talker" \
    --out "$out/talker" --minutes "$talker_minutes" --total-minutes "$talker_minutes" --no-listen $(resume talker)
