// The voices of this server: its own first, then uploaded ones; OpenAI's names only on request.

import { call, json } from "./api.js";
import { seconds } from "./words.js";

const DAY = { day: "numeric", month: "long", year: "numeric" };

export class VoicePicker {
  #select = document.getElementById("voice");
  #aliases = document.getElementById("aliases");
  #delete = document.getElementById("delete-voice");
  #note = document.getElementById("no-voice");
  #about = document.getElementById("about-voice");
  #preview = document.getElementById("preview-voice");
  #voices = [];
  #engine = null;
  #onChange;

  /** `onChange(problem)` is called without a problem when the list changed, or with what went wrong; "": no longer. */
  constructor(onChange) {
    this.#onChange = onChange;
    this.#aliases.addEventListener("change", () => this.#list(this.#select.value));
    this.#select.addEventListener("change", () => this.#showTools());
    this.#delete.addEventListener("click", () => this.#remove());
  }

  /** Why nothing can be spoken yet; empty if it can. */
  get lack() {
    const needed = this.#engine?.clones && !this.#engine.speaks_without_voice;
    return needed && !this.#select.options.length ? this.#note.textContent : "";
  }

  /** The chosen voice's name for the visitor; empty if the model makes up a voice. */
  get name() {
    return this.#chosen()?.name ?? "";
  }

  async load(engine, chosen = this.#select.value) {
    this.#engine = engine;
    this.#voices = (await json("audio/voices")).voices;
    document.getElementById("add-voice").hidden = !engine.uploads;
    this.#list(chosen);
  }

  #list(chosen) {
    const of = (kind) => this.#voices.filter((voice) => voice.kind === kind);
    const groups = [
      ["Voices of the model", of("own")],
      ["Uploaded", of("clone")],
      ["OpenAI’s names", this.#aliases.checked ? of("alias") : []],
    ].filter(([, voices]) => voices.length);
    const madeUp = this.#engine.speaks_without_voice && !of("own").length;
    const none = madeUp ? [new Option("made up by the model", "")] : [];
    this.#select.replaceChildren(...none, ...groups.map(([label, voices]) => group(label, voices)));
    const sound = (option) => !this.#voices.find((voice) => voice.id === option.value)?.broken;
    const options = [...this.#select.options];
    const first = options.find((option) => option.value === chosen) ?? options.find(sound);
    if (first) this.#select.value = first.value;
    document.getElementById("aliases-field").hidden = !of("alias").length;
    document.getElementById("voice-field").hidden = !groups.length;
    this.#note.textContent = groups.length ? "" : absence(this.#engine);
    this.#note.hidden = groups.length > 0;
    const designs = !groups.length && this.#engine.speaks_without_voice;
    document.getElementById("instructions-label").textContent = designs ? "How the voice sounds" : "How to say it";
    this.#showTools();
    this.#onChange();
  }

  #showTools() {
    const voice = this.#chosen();
    this.#delete.hidden = voice?.kind !== "clone";
    this.#preview.hidden = !voice || Boolean(voice.broken);
    this.#about.textContent = voice ? description(voice, this.#engine) : "";
  }

  #chosen() {
    return this.#voices.find((voice) => voice.id === this.#select.value);
  }

  async #remove() {
    const voice = this.#chosen();
    if (!voice || !confirm(`Delete the voice “${voice.name}” for everyone on this server?`)) return;
    try {
      await call(`audio/voices/${encodeURIComponent(voice.id)}`, { method: "DELETE" }).catch(goneAlready);
      await this.load(this.#engine);
      this.#onChange("");
      this.#select.focus();
    } catch (error) {
      this.#onChange(error.message);
    }
  }
}

/** Accept that somebody else has deleted it. */
function goneAlready(error) {
  if (error.status !== 404) throw error;
}

function group(label, voices) {
  const element = document.createElement("optgroup");
  element.label = label;
  for (const voice of voices) {
    const more = voice.alias_of ?? (voice.broken ? "damaged" : ""); // a damaged one can be chosen, to be deleted
    element.append(new Option(more ? `${voice.name} (${more})` : voice.name, voice.id));
  }
  return element;
}

/** A voice in a sentence or two, from what the server says about it. */
function description(voice, engine) {
  const own = voice.description ? [voice.description] : [];
  if (voice.broken) return "Its file is damaged or gone: delete it, and add it again.";
  if (voice.kind === "alias") return [...own, `OpenAI’s name for ${voice.alias_of} on this server.`].join(" ");
  if (voice.kind === "own") {
    const languages = engine.languages.filter((name) => name !== "auto");
    return [...own, `Comes with the model${languages.length ? `; speaks ${listed(languages)}` : ""}.`].join(" ");
  }
  const clip = Number.isFinite(voice.clip_s) ? ` of ${seconds(voice.clip_s)}` : "";
  const tongue = voice.language && voice.language !== "auto" ? ` in ${tongueOf(voice.language)}` : "";
  const day = voice.created_at ? `, added on ${new Date(1000 * voice.created_at).toLocaleDateString("en", DAY)}` : "";
  return [...own, `Made from a clip${clip}${tongue}${day}.`].join(" ");
}

/** A language's name in English, for a tag such as `en-GB` too. */
function tongueOf(language) {
  try {
    return new Intl.DisplayNames("en", { type: "language" }).of(language.replaceAll("_", "-"));
  } catch {
    return language;
  }
}

function listed(names) {
  const capital = names.map((name) => name[0].toUpperCase() + name.slice(1));
  return capital.length > 1 ? `${capital.slice(0, -1).join(", ")} and ${capital.at(-1)}` : capital[0];
}

function absence(engine) {
  if (engine.speaks_without_voice) {
    if (engine.uploads) return "This model makes a voice up, another one each time. Add one, and it can speak with that.";
    return "This model makes its voice up from your words: say below how it should sound.";
  }
  if (engine.uploads) return "This model speaks with voices that are uploaded. There is none yet: add one.";
  return "This model speaks with uploaded voices, and the server keeps none: start it with --voices DIR.";
}
