// One request for speech: its sound as it comes, and the clock of its coming.

import { ServerError, call } from "./api.js";
import { SAMPLE_RATE } from "./playback.js";

export class Utterance {
  pieces = []; // Int16Array each, as they arrived
  samples = 0;
  seed = null;
  ended = false;
  firstByteMs = null; // since the request
  lastByteMs = null;
  firstSoundMs = null; // when it was first heard: the loudspeaker's to say
  startedMs = performance.now(); // on the clock of performance.now()

  get seconds() {
    return this.samples / SAMPLE_RATE;
  }

  /** Seconds of waiting for a second of sound, up to now. */
  get rtf() {
    return this.samples ? this.lastByteMs / 1000 / this.seconds : null;
  }

  /** Ends when the last sample is here. `onPiece` gets each piece as an Int16Array. */
  async stream(body, signal, onPiece) {
    const headers = { "content-type": "application/json" };
    const response = await call("audio/speech", { method: "POST", body, headers, signal });
    this.seed = response.headers.get("x-seed");
    const reader = response.body.getReader();
    let rest = new Uint8Array(0);
    for (;;) {
      const { done, value } = await this.#read(reader);
      if (done) break;
      this.lastByteMs = performance.now() - this.startedMs;
      this.firstByteMs ??= this.lastByteMs;
      const bytes = joined(rest, value);
      const even = bytes.length & ~1; // the network knows nothing of samples
      rest = bytes.slice(even);
      if (even) onPiece(this.#keep(new Int16Array(bytes.buffer, bytes.byteOffset, even / 2)));
    }
    this.ended = true;
  }

  async #read(reader) {
    try {
      return await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ServerError("The connection broke off: what you heard is not the whole text.", 0);
    }
  }

  #keep(piece) {
    this.pieces.push(piece);
    this.samples += piece.length;
    return piece;
  }
}

export function toFloat(piece) {
  return Float32Array.from(piece, (sample) => sample / 32768);
}

/** Both in a buffer of their own, from its first byte: 16-bit samples must lie at even places. */
function joined(rest, value) {
  const bytes = new Uint8Array(rest.length + value.length);
  bytes.set(rest);
  bytes.set(value, rest.length);
  return bytes;
}
