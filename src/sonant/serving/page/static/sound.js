// The samples of one utterance, to which more are appended: 16 bits, mono.

export const SAMPLE_RATE = 24000; // of response_format=pcm
const FIRST_ROOM_S = 10;

export class Sound {
  length = 0; // in samples
  #room = new Int16Array(FIRST_ROOM_S * SAMPLE_RATE);

  get seconds() {
    return this.length / SAMPLE_RATE;
  }

  add(piece) {
    const wanted = this.length + piece.length;
    if (wanted > this.#room.length) {
      const larger = new Int16Array(Math.max(wanted, 2 * this.#room.length));
      larger.set(this.#room);
      this.#room = larger;
    }
    this.#room.set(piece, this.length);
    this.length = wanted;
  }

  /** A view, not a copy: it must not be changed. */
  part(from = 0, to = this.length) {
    return this.#room.subarray(from, Math.min(to, this.length));
  }
}

export function toFloat(samples) {
  return Float32Array.from(samples, (sample) => sample / 32768);
}

export function toInt16(samples) {
  return Int16Array.from(samples, (s) => Math.max(-32768, Math.min(32767, Math.round(s * 32767))));
}
