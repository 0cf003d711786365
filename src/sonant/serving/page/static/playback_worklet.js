// Plays samples as they arrive, and counts what the listener hears. It lives on the audio thread.

const QUANTA_A_REPORT = 8; // about 40 ms at 24 kHz

class Playback extends AudioWorkletProcessor {
  #pieces = [];
  #offset = 0; // into the first piece
  #queued = 0;
  #played = 0;
  #peak = 0;
  #gaps = []; // sample positions where the sound ran out
  #state = "waiting"; // → playing ⇄ starved → done
  #startedAt = null; // of the context's clock
  #ended = false;
  #quanta = 0;
  #refillSamples;

  constructor({ processorOptions }) {
    super();
    this.#refillSamples = processorOptions.refillSamples;
    this.port.onmessage = ({ data }) => {
      if (data === "end") {
        this.#ended = true;
        return;
      }
      this.#pieces.push(data);
      this.#queued += data.length;
    };
  }

  process(_, [[output]]) {
    this.#move();
    if (this.#state === "playing") this.#fill(output);
    if (this.#state === "done" || ++this.#quanta % QUANTA_A_REPORT === 0) this.#report();
    return this.#state !== "done";
  }

  /** The first piece is played at once; after a gap a little is gathered first, or one gap would become many. */
  #move() {
    if (this.#queued === 0) {
      if (this.#ended) this.#state = "done";
      return;
    }
    const enough = this.#ended || this.#queued >= this.#refillSamples;
    if (this.#state === "waiting") this.#startedAt = currentTime;
    if (this.#state === "waiting" || (this.#state === "starved" && enough)) this.#state = "playing";
  }

  #fill(output) {
    let filled = 0;
    while (filled < output.length && this.#pieces.length) {
      const piece = this.#pieces[0];
      const part = piece.subarray(this.#offset, this.#offset + output.length - filled);
      output.set(part, filled);
      filled += part.length;
      this.#offset += part.length;
      if (this.#offset === piece.length) {
        this.#pieces.shift();
        this.#offset = 0;
      }
    }
    for (const sample of output) this.#peak = Math.max(this.#peak, Math.abs(sample));
    this.#played += filled;
    this.#queued -= filled;
    if (filled < output.length && !this.#ended) {
      this.#state = "starved";
      this.#gaps.push(this.#played);
    }
  }

  #report() {
    this.port.postMessage({
      state: this.#state,
      played: this.#played,
      peak: this.#peak,
      gaps: this.#gaps,
      startedAt: this.#startedAt,
    });
  }
}

registerProcessor("playback", Playback);
