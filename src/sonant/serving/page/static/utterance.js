// One request for speech: its sound as it arrives, and when it arrived.

import { ServerError, call } from "./api.js";
import { SAMPLE_RATE, Sound } from "./sound.js";
import { object } from "./snippets.js";

const LATELY_MS = 3000; // over which the rate is measured, since a server's speed changes with its load

export class Utterance {
  sound = new Sound();
  pieces = 0; // in which the sound came
  seed = null;
  open = true; // more may come
  whole = false; // all of it came
  firstByteMs = null; // since the request
  lastByteMs = null;
  firstSoundMs = null; // when it was first heard, which the loudspeaker reports
  startedMs = performance.now(); // on the clock of performance.now()
  #marks = []; // { ms, samples } of the last seconds: how much had arrived when

  /** `fields`: name → JSON text of its value; `voice`: its name for the visitor. */
  constructor(fields, voice) {
    this.fields = fields;
    this.voice = voice;
    this.text = JSON.parse(fields.input);
    this.speed = Number(fields.speed ?? 1);
  }

  /** Seconds since the request for each second of sound, up to now. */
  get rtf() {
    return this.sound.length ? this.lastByteMs / 1000 / this.sound.seconds : null;
  }

  /** Seconds of sound that came in a second lately; null until sound has been arriving for `leastS`. */
  rate(leastS) {
    if (!this.#marks.length) return null;
    const [first] = this.#marks;
    const untilMs = this.open ? performance.now() - this.startedMs : this.lastByteMs;
    const comingS = (untilMs - first.ms) / 1000;
    return comingS < leastS ? null : (this.sound.length - first.samples) / SAMPLE_RATE / comingS;
  }

  /** Resolves when the last sample has arrived. `onPiece` gets each piece as an Int16Array. */
  async stream(signal, onPiece) {
    try {
      await this.#stream(signal, onPiece);
      this.whole = true;
    } finally {
      this.open = false;
    }
  }

  async #stream(signal, onPiece) {
    const headers = { "content-type": "application/json" };
    const response = await call("audio/speech", { method: "POST", body: object(this.fields), headers, signal });
    this.seed = response.headers.get("x-seed");
    const reader = response.body.getReader();
    let rest = new Uint8Array(0);
    for (;;) {
      const { done, value } = await read(reader);
      if (done) return;
      this.lastByteMs = performance.now() - this.startedMs;
      this.firstByteMs ??= this.lastByteMs;
      const bytes = joined(rest, value);
      const even = bytes.length & ~1; // the network may split a sample
      rest = bytes.slice(even);
      if (even) onPiece(this.#keep(new Int16Array(bytes.buffer, bytes.byteOffset, even / 2)));
    }
  }

  #keep(piece) {
    this.pieces += 1;
    this.sound.add(piece);
    this.#marks.push({ ms: this.lastByteMs, samples: this.sound.length });
    while (this.#marks[1]?.ms < this.lastByteMs - LATELY_MS) this.#marks.shift();
    return piece;
  }
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The connection broke off: what you heard is not the whole text.", 0);
  }
}

/** Join both in a buffer of their own, from its first byte, since 16-bit samples must lie at even offsets. */
function joined(rest, value) {
  const bytes = new Uint8Array(rest.length + value.length);
  bytes.set(rest);
  bytes.set(value, rest.length);
  return bytes;
}
