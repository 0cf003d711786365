// Brings the parts of the page together.

import { apiKey, apiRoot, json } from "./api.js";
import { EnginePanel } from "./engine_panel.js";
import { KeyDialog } from "./key_dialog.js";
import { SAMPLE_RATE } from "./playback.js";
import { Player } from "./player.js";
import { RequestForm } from "./request_form.js";
import { object, snippets } from "./snippets.js";
import { VoiceDialog } from "./voice_dialog.js";
import { VoicePicker } from "./voice_picker.js";
import { save, wavFile } from "./wav.js";

const element = (id) => document.getElementById(id);
const form = element("speech");

const request = new RequestForm(form);
const player = new Player(showState);
const keys = new KeyDialog(connect);
const voices = new VoicePicker((problem) => {
  complain(problem);
  showSnippet();
});
const panel = new EnginePanel({
  list: element("tiles"),
  window: element("window"),
  trouble: element("engine-trouble"),
  onReady: showReady,
});
let engine = null; // what the server says is loaded
let connecting = false;
let voiceDialog = null;

async function connect() {
  connecting = true;
  try {
    engine = await json("engine");
    request.adapt(engine);
    await voices.load(engine);
    element("model-name").textContent = `${engine.model} on ${engine.device}`;
    if (engine.uploads) voiceDialog ??= new VoiceDialog(engine.uploads, (voice) => voices.load(engine, voice.id));
    complain("");
  } catch (error) {
    engine = null;
    refused(error);
  } finally {
    connecting = false;
  }
  element("change-key").hidden = !apiKey.get();
  panel.start();
}

async function speak() {
  complain(voices.lack);
  if (voices.lack || !form.reportValidity()) return;
  try {
    await player.speak(object(request.fields()));
  } catch (error) {
    refused(error);
  }
}

function refused(error) {
  complain(error.message);
  if (error.status === 401) keys.open();
}

function complain(message) {
  element("problem").textContent = message;
}

function showReady(ready) {
  element("ready-mark").classList.toggle("ready", ready);
  if (ready && !engine && !connecting) connect(); // it was loading, or was loaded again
}

function showState(state) {
  const busy = state === "waiting" || state === "speaking";
  element("stop").disabled = !busy;
  const { utterance } = player;
  element("again").disabled = element("download").disabled = busy || !utterance?.samples;
  element("keep-seed").hidden = busy || !utterance?.seed;
}

function showSnippet() {
  const kind = document.querySelector("input[name=snippet]:checked").value;
  element("snippet").textContent = snippets[kind](request.fields(), apiRoot, Boolean(apiKey.get()));
}

async function copySnippet() {
  try {
    await navigator.clipboard.writeText(element("snippet").textContent);
    element("copy").textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(element("snippet")); // no clipboard without https: the keyboard does it
    element("copy").textContent = "Selected";
  }
  setTimeout(() => (element("copy").textContent = "Copy"), 2000);
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  speak();
});
form.addEventListener("input", showSnippet);
element("code").addEventListener("change", showSnippet);
element("stop").addEventListener("click", () => player.stop());
element("again").addEventListener("click", () => player.again());
element("download").addEventListener("click", () => save(wavFile(player.utterance.pieces, SAMPLE_RATE), "speech.wav"));
element("keep-seed").addEventListener("click", () => request.keepSeed(player.utterance.seed));
element("copy").addEventListener("click", copySnippet);
element("change-key").addEventListener("click", () => keys.open());
element("add-voice").addEventListener("click", () => voiceDialog.open());
document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    speak();
  }
  if (event.key === "Escape") player.stop();
});

showSnippet();
connect();
