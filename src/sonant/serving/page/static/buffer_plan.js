// How long to buffer sound before playing on, if it arrives more slowly than it is heard: one wait that is long enough,
// instead of many short ones.

const REFILL_S = 0.2; // to buffer after a mere hiccup
const LONGEST_WAIT_S = 30; // for a text without end; later another wait may follow
const MARGIN = 1.1; // since the rate so far is no promise
const SURE_AFTER_S = 0.4; // for which sound must arrive before its rate counts; until then the last utterance's does
const LEAST_TO_COME_S = 0.5; // of sound, while more may come
const MORE_THAN_GUESSED = 0.1; // once there is more sound than guessed: so large a part of it is still to come
const LETTER_S = 0.07; // roughly, for any speaker
const IDEOGRAM_S = 0.22;
const IDEOGRAMS = /[\p{sc=Han}\p{sc=Hiragana}\p{sc=Katakana}\p{sc=Hangul}]/gu;

export class BufferPlan {
  #rate = null; // of the last utterance: seconds of sound that came in a second
  #drawl = 1; // the last utterance's length, as a multiple of the guess

  /** Learn from an utterance that is over: the next one is expected to be like it, until its own figures are known. */
  learn(utterance) {
    if (!utterance.whole || !utterance.sound.length) return;
    this.#rate = utterance.rate(SURE_AFTER_S);
    this.#drawl = utterance.sound.seconds / guessS(utterance);
  }

  /** Seconds still to wait: 0 plays on. Infinity: too little has come to tell. `aheadS` is buffered, not yet heard. */
  waitS(utterance, aheadS, { waitedS, first }) {
    if (!utterance.open) return 0;
    if (!aheadS) return Infinity;
    const rate = utterance.rate(SURE_AFTER_S);
    const slow = (rate ?? this.#rate ?? 1) < 1;
    if (first && !slow) return 0; // holding back the first sound would gain nothing
    if (!rate) return Infinity;
    if (rate >= 1) return Math.max(0, (REFILL_S - aheadS) / rate);
    const toComeS = this.#toComeS(utterance);
    // The rest takes toComeS / rate to arrive, and playing all that is not heard yet takes aheadS + toComeS.
    const planned = (MARGIN * toComeS) / rate - (aheadS + toComeS);
    const least = aheadS < REFILL_S ? (REFILL_S - aheadS) / rate : 0;
    return Math.max(least, Math.min(planned, LONGEST_WAIT_S - waitedS), 0);
  }

  #toComeS(utterance) {
    const hereS = utterance.sound.seconds;
    return Math.max(this.#drawl * guessS(utterance) - hereS, MORE_THAN_GUESSED * hereS, LEAST_TO_COME_S);
  }
}

function guessS({ text, speed }) {
  const ideograms = text.match(IDEOGRAMS)?.length ?? 0;
  return Math.max(LEAST_TO_COME_S, ((text.length - ideograms) * LETTER_S + ideograms * IDEOGRAM_S) / speed);
}
