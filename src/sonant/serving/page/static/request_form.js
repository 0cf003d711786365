// What the visitor filled in, as the fields of a request.

import { SAMPLE_RATE } from "./sound.js";
import { counted, several } from "./words.js";

const PAIRS = /[\ud800-\udbff][\udc00-\udfff]/g; // characters that JavaScript counts twice and the server once

export class RequestForm {
  #form;
  #modelRate = SAMPLE_RATE;
  #mostChars = Infinity;

  constructor(form) {
    this.#form = form;
    this.#field("speed").addEventListener("input", () => this.#showSpeed());
    this.#showSpeed(); // some browsers keep the values of fields when a page is reloaded
    this.#field("text").addEventListener("input", () => this.#count());
    const more = document.getElementById("more");
    more.addEventListener("invalid", () => (more.open = true), { capture: true }); // a closed fold would hide the error
  }

  /** Fit the form to what the loaded model can do. */
  adapt(engine) {
    const language = this.#field("language");
    const auto = language.options[0];
    const kept = language.value;
    const named = engine.languages.filter((name) => name !== "auto").map((name) => new Option(name, name));
    language.replaceChildren(auto, ...named);
    language.value = [...language.options].some((option) => option.value === kept) ? kept : "auto";
    document.getElementById("instructions-field").hidden = !engine.instructs;
    this.#modelRate = engine.sample_rate;
    this.#mostChars = engine.max_text_chars;
    this.#count();
  }

  /** How many characters the text has beyond the server's limit. */
  get excess() {
    return Math.max(0, characters(this.#field("text").value) - this.#mostChars);
  }

  /** Name → JSON text of its value; fields that were not filled in are left out. */
  fields() {
    const fields = { input: JSON.stringify(this.#field("text").value) };
    const put = (name, value, usual) => {
      if (value !== "" && value !== usual) fields[name] = JSON.stringify(value);
    };
    put("voice", this.#field("voice").value);
    fields.response_format = '"pcm"';
    if (this.#modelRate !== SAMPLE_RATE) fields.sample_rate = String(SAMPLE_RATE); // else sound has the model's own
    put("language", this.#field("language").value, "auto");
    put("speed", Number(this.#field("speed").value), 1);
    if (!document.getElementById("instructions-field").hidden) {
      put("instructions", this.#field("instructions").value.trim());
    }
    const temperature = this.#field("temperature").value;
    if (temperature !== "") put("temperature", Number(temperature));
    const seed = this.#field("seed").value.replace(/^0+(?=.)/, "");
    if (/^\d+$/.test(seed)) fields.seed = seed;
    return fields;
  }

  keepSeed(seed) {
    this.#field("seed").value = seed;
    document.getElementById("more").open = true;
    this.#field("seed").focus();
    this.#form.dispatchEvent(new Event("input"));
  }

  #field(name) {
    return this.#form.elements.namedItem(name);
  }

  #showSpeed() {
    document.getElementById("speed-shown").textContent = `${Number(this.#field("speed").value).toFixed(2)} ×`;
  }

  /** Show the text's length and any excess. The text is not cut off: the visitor decides what to leave out. */
  #count() {
    const text = this.#field("text");
    const { excess } = this;
    const most = Number.isFinite(this.#mostChars) ? ` of ${counted(this.#mostChars)}` : "";
    document.getElementById("count").textContent = `${counted(characters(text.value))}${most} characters`;
    const over = `${several(excess, "character")} too many: the server takes ${counted(this.#mostChars)} at once.`;
    document.getElementById("too-long").textContent = excess ? `${over} Shorten the text, or speak it in parts.` : "";
    text.setAttribute("aria-invalid", String(excess > 0));
  }
}

function characters(text) {
  return text.length - (text.match(PAIRS)?.length ?? 0);
}
