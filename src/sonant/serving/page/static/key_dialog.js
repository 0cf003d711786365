// Asks for the API key, once the server has said that it wants one.

import { apiKey } from "./api.js";

export class KeyDialog {
  #dialog = document.getElementById("key-dialog");
  #input = document.getElementById("key");
  #wrong = document.getElementById("key-wrong");

  /** `onKey()` is called when a key was given. */
  constructor(onKey) {
    this.#dialog.addEventListener("close", () => {
      const given = this.#input.value.trim();
      this.#input.value = "";
      if (this.#dialog.returnValue !== "use" || !given) return;
      apiKey.set(given);
      onKey();
    });
  }

  /** `wrong`: why the last key was refused; empty if there was none. */
  open(wrong = "") {
    if (this.#dialog.open) return;
    this.#dialog.returnValue = "";
    this.#dialog.showModal();
    this.#wrong.textContent = wrong; // only now that it is visible, or screen readers would not say it
    this.#input.setAttribute("aria-invalid", String(Boolean(wrong)));
  }
}
