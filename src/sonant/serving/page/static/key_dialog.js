// Asks for the API key, once the server has said that it wants one.

import { apiKey } from "./api.js";

export class KeyDialog {
  #dialog = document.getElementById("key-dialog");
  #input = document.getElementById("key");

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

  open() {
    if (this.#dialog.open) return;
    this.#dialog.returnValue = "";
    this.#dialog.showModal();
  }
}
