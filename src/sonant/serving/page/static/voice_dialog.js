// Adding a voice: the clip, and the consent that the server asks for.

import { json } from "./api.js";
import { ClipInput } from "./clip_input.js";

const CONSENT_MAX_S = 60;

export class VoiceDialog {
  #dialog = document.getElementById("voice-dialog");
  #form = document.getElementById("voice-form");
  #problem = document.getElementById("voice-problem");
  #uploads = null;
  #recorded = document.getElementById("voice-consent");
  #clip = new ClipInput(document.getElementById("voice-clip"), "clip");
  #consent = new ClipInput(this.#recorded, "consent");
  #given = { blob: null, id: null }; // a consent that was sent: if the voice is refused, the next try uses it again
  #onAdded;

  /** `onAdded(voice)` is called with each new voice. */
  constructor(onAdded) {
    this.#onAdded = onAdded;
    this.#form.addEventListener("submit", (event) => this.#send(event));
    document.getElementById("voice-cancel").addEventListener("click", () => this.#dialog.close());
    this.#dialog.addEventListener("close", () => this.#reset());
  }

  /** `uploads`: what the server says about uploading. */
  adapt(uploads) {
    this.#uploads = uploads;
    this.#clip.maxS = uploads.clip_max_s;
    this.#consent.maxS = CONSENT_MAX_S;
    this.#recorded.hidden = uploads.consent !== "required";
    document.getElementById("clip-hint").textContent =
      `Clear speech of one person, ${uploads.clip_min_s} to ${uploads.clip_max_s} seconds; about ten are plenty.`;
  }

  open() {
    this.#dialog.showModal();
  }

  #reset() {
    this.#form.reset();
    this.#clip.reset();
    this.#consent.reset();
    this.#given = { blob: null, id: null };
    this.#problem.textContent = "";
  }

  async #send(event) {
    event.preventDefault();
    this.#problem.textContent = "";
    const button = document.getElementById("voice-send");
    button.disabled = true;
    try {
      const voice = await this.#upload();
      this.#dialog.close();
      this.#onAdded(voice);
    } catch (error) {
      this.#problem.textContent = error.message;
    } finally {
      button.disabled = false;
    }
  }

  async #upload() {
    const name = this.#form.elements.namedItem("voice-name").value.trim();
    if (!this.#clip.blob) throw new Error("Choose or record a clip of the voice first.");
    const form = new FormData();
    form.set("name", name);
    form.set("audio_sample", this.#clip.blob, "clip.wav");
    form.set("consent", await this.#agreement(name));
    const words = this.#form.elements.namedItem("voice-words").value.trim();
    if (words) form.set("ref_text", words);
    return json("audio/voices", { method: "POST", body: form });
  }

  /** A consent's id, or the statement that was ticked if the operator accepts that. */
  async #agreement(name) {
    if (this.#uploads.consent !== "required") {
      return document.getElementById("voice-agreed").parentElement.textContent.trim();
    }
    const { blob } = this.#consent;
    if (blob && blob === this.#given.blob) return this.#given.id;
    if (!blob) throw new Error("Choose or record the speaker’s consent first.");
    const language = this.#form.elements.namedItem("consent-language").value.trim();
    if (!language) throw new Error("Say in which language the consent is, such as en or de.");
    const form = new FormData();
    form.set("name", name);
    form.set("language", language);
    form.set("recording", blob, "consent.wav");
    const { id } = await json("audio/voice_consents", { method: "POST", body: form });
    this.#given = { blob, id };
    return id;
  }
}
