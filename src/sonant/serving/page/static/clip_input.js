// A clip of sound from a file or the microphone, sent as WAV: browsers read formats that the server does not.

import { SAMPLE_RATE, toInt16 } from "./sound.js";
import { wavFile } from "./wav.js";
import { seconds } from "./words.js";

const MAX_FILE_BYTES = 100 << 20;

export class ClipInput {
  blob = null;
  lengthS = null; // null with a blob: this browser cannot read it, the server may
  #file;
  #button;
  #state;
  #recorder = null;
  #maxS;

  /** Adds its controls to a fieldset. */
  constructor(fieldset, idPrefix, maxS) {
    this.#maxS = maxS;
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
    this.#recorder?.stop();
    this.blob = this.lengthS = null;
    this.#file.value = "";
    this.#state.textContent = "";
  }

  async #record() {
    let input;
    try {
      input = await navigator.mediaDevices.getUserMedia({ audio: true });
    } catch (error) {
      this.#state.textContent = `The microphone cannot be used: ${error.message}`;
      return;
    }
    const parts = [];
    const recorder = (this.#recorder = new MediaRecorder(input));
    const limit = setTimeout(() => recorder.stop(), 1000 * this.#maxS);
    recorder.ondataavailable = ({ data }) => parts.push(data);
    recorder.onstop = () => {
      clearTimeout(limit);
      for (const track of input.getTracks()) track.stop();
      this.#recorder = null;
      this.#button.textContent = "Record again";
      this.#file.value = "";
      this.#take(new Blob(parts, { type: recorder.mimeType }));
    };
    recorder.start();
    this.#button.textContent = "Stop recording";
    this.#state.textContent = `Recording, for ${this.#maxS} s at most …`;
  }

  async #take(blob) {
    this.blob = this.lengthS = null;
    this.#state.textContent = "";
    if (!blob) return;
    if (blob.size > MAX_FILE_BYTES) {
      this.#state.textContent = "The file is too large; choose a clip of some seconds.";
      return;
    }
    try {
      const decoder = new OfflineAudioContext(1, 1, SAMPLE_RATE);
      const sound = await decoder.decodeAudioData(await blob.arrayBuffer());
      this.blob = wavFile(toInt16(mixed(sound)), SAMPLE_RATE);
      this.lengthS = sound.duration;
      this.#state.textContent = `${blob.name ?? "Recording"}: ${seconds(sound.duration)} of sound.`;
    } catch {
      this.blob = blob;
      this.#state.textContent = "This browser cannot read the clip; the server may.";
    }
  }
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
