// A clip of sound from a file or the microphone, sent as WAV: browsers read formats that the server does not.

import { SAMPLE_RATE, toInt16 } from "./sound.js";
import { wavFile } from "./wav.js";
import { seconds } from "./words.js";

const MAX_FILE_BYTES = 100 << 20;

export class ClipInput {
  blob = null;
  maxS = Infinity; // of a recording
  lengthS = null; // null with a blob: this browser cannot read the clip, but the server may
  #file;
  #button;
  #state;
  #recorder = null;
  #round = 0; // counts the choices of a clip: results of an earlier one are dropped

  /** Adds its controls to a fieldset. */
  constructor(fieldset, idPrefix) {
    this.#file = element("input", { type: "file", accept: "audio/*", id: `${idPrefix}-file`, className: "unseen" });
    const label = element("label", { textContent: "Choose a file …", htmlFor: this.#file.id, className: "button" });
    this.#button = element("button", { type: "button", textContent: "Record" });
    this.#button.hidden = !navigator.mediaDevices || !window.MediaRecorder; // only there on https and localhost
    this.#state = element("p", { className: "hint" });
    this.#state.setAttribute("role", "status");
    const row = element("div", { className: "clip-row" });
    row.append(this.#file, label, this.#button);
    fieldset.append(row, this.#state);
    this.#file.addEventListener("change", () => this.#take(this.#file.files[0]));
    this.#button.addEventListener("click", () => (this.#recorder ? this.#recorder.stop() : this.#record()));
  }

  reset() {
    this.#begin();
    this.#file.value = "";
  }

  #begin() {
    this.#recorder?.stop();
    this.#recorder = null;
    this.#button.textContent = "Record";
    this.blob = this.lengthS = null;
    this.#state.textContent = "";
    return ++this.#round;
  }

  async #record() {
    const round = this.#begin();
    let input;
    try {
      input = await navigator.mediaDevices.getUserMedia({ audio: true });
    } catch (error) {
      if (round === this.#round) this.#state.textContent = `The microphone cannot be used: ${error.message}`;
      return;
    }
    if (round !== this.#round) return silence(input);
    const parts = [];
    const recorder = (this.#recorder = new MediaRecorder(input));
    const limit = setTimeout(() => recorder.stop(), 1000 * this.maxS);
    recorder.ondataavailable = ({ data }) => parts.push(data);
    recorder.onstop = () => {
      clearTimeout(limit);
      silence(input);
      if (round !== this.#round) return;
      this.#recorder = null;
      this.#file.value = "";
      this.#take(new Blob(parts, { type: recorder.mimeType }));
      this.#button.textContent = "Record again";
    };
    recorder.start();
    this.#button.textContent = "Stop recording";
    this.#state.textContent = `Recording, for ${this.maxS} s at most …`;
  }

  async #take(blob) {
    const round = this.#begin();
    if (!blob) return;
    if (blob.size > MAX_FILE_BYTES) {
      this.#state.textContent = "The file is too large; choose a clip of some seconds.";
      return;
    }
    try {
      const decoder = new OfflineAudioContext(1, 1, SAMPLE_RATE);
      const sound = await decoder.decodeAudioData(await blob.arrayBuffer());
      if (round !== this.#round) return;
      this.blob = wavFile(toInt16(mixed(sound)), SAMPLE_RATE);
      this.lengthS = sound.duration;
      this.#state.textContent = `${blob.name ?? "Recording"}: ${seconds(sound.duration)} of sound.`;
    } catch {
      if (round !== this.#round) return;
      this.blob = blob;
      this.#state.textContent = "This browser cannot read the clip; the server may.";
    }
  }
}

/** Release the microphone. */
function silence(input) {
  for (const track of input.getTracks()) track.stop();
}

function mixed(sound) {
  const mix = new Float32Array(sound.length);
  for (let channel = 0; channel < sound.numberOfChannels; channel++) {
    sound.getChannelData(channel).forEach((sample, i) => (mix[i] += sample / sound.numberOfChannels));
  }
  return mix;
}

function element(tag, properties) {
  return Object.assign(document.createElement(tag), properties);
}
