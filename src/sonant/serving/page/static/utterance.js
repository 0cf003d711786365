// One request for speech: its sound as it comes, and the clock of its coming.

import { ServerError, call } from "./api.js";
import { SAMPLE_RATE, Sound } from "./sound.js";
import { object } from "./snippets.js";

const LATELY_MS = 3000; // a server's speed changes with what else it does

export class Utterance {
  sound = new Sound();
  pieces = 0; // that it came in
  seed = null;
  open = true; // more may come
  whole = false; // it came to its end
  firstByteMs = null; // since the request
  lastByteMs = null;
  firstSoundMs = null; // when it was first heard: the loudspeaker's to say
  startedMs = performance.now(); // on the clock of performance.now()
  #marks = []; // { ms, samples }: of the last seconds, what was here when

  /** `fields`: name → JSON text of its value; `voice`: how the visitor calls it. */
  constructor(fields, voice) {
    this.fields = fields;
    this.voice = voice;
    this.text = JSON.parse(fields.input);
    this.speed = Number(fields.speed ?? 1);
  }

  /** Seconds of waiting for a second of sound, up to now. */
  get rtf() {
    return this.sound.length ? this.lastByteMs / 1000 / this.sound.seconds : null;
  }

  /** Seconds of sound that come in a second, of late, or null before it has come for `leastS`. */
  rate(leastS) {
    if (!this.#marks.length) return null;
    const [first] = this.#marks;
    const untilMs = this.open ? performance.now() - this.startedMs : this.lastByteMs;
    const comingS = (untilMs - first.ms) / 1000;
    return comingS < leastS ? null : (this.sound.length - first.samples) / SAMPLE_RATE / comingS;
  }

  /** Ends when the last sample is here. `onPiece` gets each piece as an Int16Array. */
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
      const even = bytes.length & ~1; // the network knows nothing of samples
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

/** Both in a buffer of their own, from its first byte: 16-bit samples must lie at even places. */
function joined(rest, value) {
  const bytes = new Uint8Array(rest.length + value.length);
  bytes.set(rest);
  bytes.set(value, rest.length);
  return bytes;
}
