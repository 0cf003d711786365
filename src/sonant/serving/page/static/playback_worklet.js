// Plays samples as they arrive, on the audio thread. It starts held, and is held again when it runs out of samples:
// when to go on is decided elsewhere.

const QUANTA_A_REPORT = 8; // about 40 ms at 24 kHz

class Playback extends AudioWorkletProcessor {
  #pieces = [];
  #offset = 0; // into the first piece
  #queued = 0;
  #played = 0;
  #state = "held"; // held ⇄ playing → dry (held, since nothing was left), done or closed
  #startedAt = null; // on the context's clock
  #ended = false;
  #holding = false; // held from the next quantum on
  #turn = 0; // counts messages to go or to hold: reports from before the last one are out of date
  #quanta = 0;

  constructor() {
    super();
    this.port.onmessage = ({ data }) => this.#hear(data);
  }

  #hear(message) {
    if (message instanceof Float32Array) {
      this.#pieces.push(message);
      this.#queued += message.length;
    } else if (message === "end") this.#ended = true;
    else if (message === "close") this.#state = "closed";
    else this.#turnTo(message);
  }

  #turnTo(message) {
    this.#turn += 1;
    this.#holding = message === "hold" && this.#state === "playing";
    if (message === "go" && this.#state !== "closed") this.#state = "playing";
  }

  process(_, [[output]]) {
    if (this.#state === "closed") return false;
    const before = this.#state;
    if (before === "playing") this.#fill(output);
    if (this.#state !== before || ++this.#quanta % QUANTA_A_REPORT === 0) this.#report();
    return this.#state !== "done";
  }

  #fill(output) {
    if (this.#queued) this.#startedAt ??= currentTime;
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
    this.#played += filled;
    this.#queued -= filled;
    if (this.#ended && !this.#queued) this.#state = "done";
    else if (filled < output.length) this.#state = "dry";
    else if (this.#holding) this.#hold(output);
  }

  /** Fade out, since a sound that is cut off clicks. */
  #hold(output) {
    output.forEach((sample, i) => (output[i] = sample * (1 - i / output.length)));
    this.#holding = false;
    this.#state = "held";
  }

  #report() {
    const { port } = this;
    port.postMessage({ turn: this.#turn, state: this.#state, played: this.#played, startedAt: this.#startedAt });
  }
}

registerProcessor("playback", Playback);
