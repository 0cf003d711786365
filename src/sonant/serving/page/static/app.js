// Brings the parts of the page together.

import { apiKey, apiRoot, json } from "./api.js";
import { EnginePanel } from "./engine_panel.js";
import { History, whileBusy } from "./history.js";
import { KeyDialog } from "./key_dialog.js";
import { Player } from "./player.js";
import { RequestForm } from "./request_form.js";
import { saveMp3, saveWav } from "./saving.js";
import { snippets } from "./snippets.js";
import { Utterance } from "./utterance.js";
import { VoiceDialog } from "./voice_dialog.js";
import { VoicePicker } from "./voice_picker.js";
import { VoicePreview } from "./voice_preview.js";

const element = (id) => document.getElementById(id);
const form = element("speech");
const calm = matchMedia("(prefers-reduced-motion: reduce)");

const request = new RequestForm(form);
const player = new Player(showState, refused);
const previews = new VoicePreview();
const history = new History({ onPlay: (utterance) => player.replay(utterance), onProblem: refused });
const keys = new KeyDialog(connect);
const voiceDialog = new VoiceDialog(added);
const voices = new VoicePicker((problem) => {
  if (problem !== undefined) complain(problem);
  showSnippet();
});
const panel = new EnginePanel({
  list: element("tiles"),
  meanings: element("meanings"),
  window: element("window"),
  trouble: element("engine-trouble"),
  onReady: showReady,
});
let engine = null; // what the server says of the loaded engine
let current = false; // whether `engine` still holds: a server that was away may have come back with another one
let connecting = false;
let trouble = ""; // why the server could not be asked

async function connect() {
  connecting = true;
  try {
    engine = await json("engine");
    request.adapt(engine);
    await voices.load(engine);
    element("model-name").textContent = `${engine.model} on ${engine.device}`;
    if (engine.uploads) voiceDialog.adapt(engine.uploads);
    current = true;
    if (element("problem").textContent === trouble) complain(""); // another message is about something else
  } catch (error) {
    trouble = error.message;
    refused(error);
  } finally {
    connecting = false;
  }
  showSpeak();
  element("change-key").hidden = !apiKey.get();
  panel.start();
}

async function added(voice) {
  complain("");
  await voices.load(engine, voice.id);
}

function speak() {
  complain(voices.lack);
  if (voices.lack || !form.reportValidity()) return;
  if (request.excess) {
    element("text").focus();
    return;
  }
  say(new Utterance(request.fields(), voices.name));
  showPlayer();
}

async function say(utterance) {
  try {
    await player.speak(utterance);
  } catch (error) {
    refused(error);
  }
}

function preview() {
  const utterance = previews.utterance(request.fields(), engine, `${voices.name}, a preview`);
  complain("");
  if (utterance.whole) player.replay(utterance).catch(refused);
  else say(utterance);
}

/** Scroll to the player: on a small screen it lies below the button that was just pressed. */
function showPlayer() {
  const { top } = element("player").getBoundingClientRect();
  const { bottom } = element("transport").getBoundingClientRect();
  if (top >= 0 && bottom <= innerHeight) return;
  element("player").scrollIntoView({ block: "start", behavior: calm.matches ? "auto" : "smooth" });
}

function refused(error) {
  complain(error.message);
  if (error.status === 401) keys.open(apiKey.get() && error.message);
}

function complain(message) {
  element("problem").textContent = message;
}

function showReady(ready) {
  element("ready-mark").classList.toggle("ready", ready);
  if (!ready) current = false;
  if (ready && !current && !connecting) connect(); // the engine was loading, or was loaded again
}

function showState(state) {
  const over = ["done", "stopped", "failed"].includes(state);
  if (over && !previews.made(player.utterance)) history.add(player.utterance);
  showFiles();
  showSpeak();
}

function showFiles() {
  const { utterance } = player;
  const here = utterance.sound.length > 0 && !player.busy;
  element("wav").disabled = !here;
  element("mp3").disabled = !here || !utterance.whole || !utterance.seed;
  element("keep-seed").hidden = player.busy || !utterance.seed;
}

function makeMp3() {
  const { utterance } = player;
  whileBusy(element("mp3"), () => saveMp3(utterance)).catch(refused).finally(showFiles);
}

/** Label the button with what it would do now. */
function showSpeak() {
  const button = element("speak");
  button.textContent = player.busy ? "Stop speaking" : "Speak";
  button.setAttribute("aria-busy", String(player.busy));
  button.disabled = !player.busy && request.excess > 0;
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
    getSelection().selectAllChildren(element("snippet")); // no clipboard without https: select, to copy by keyboard
    element("copy").textContent = "Selected";
  }
  setTimeout(() => (element("copy").textContent = "Copy"), 2000);
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  speak();
});
element("speak").addEventListener("click", (event) => {
  if (!player.busy) return;
  event.preventDefault(); // this is no submission, so the form need not be valid
  if (event.detail < 2) player.stop(); // a double click counts once
});
form.addEventListener("input", () => {
  showSnippet();
  showSpeak();
});
element("code").addEventListener("change", showSnippet);
element("preview-voice").addEventListener("click", preview);
element("wav").addEventListener("click", () => saveWav(player.utterance));
element("mp3").addEventListener("click", makeMp3);
element("keep-seed").addEventListener("click", () => request.keepSeed(player.utterance.seed));
element("copy").addEventListener("click", copySnippet);
element("change-key").addEventListener("click", () => keys.open());
element("add-voice").addEventListener("click", () => voiceDialog.open());
document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    if (!event.repeat) speak(); // a key that is held down counts once
  }
  if (event.key === "Escape") player.stop();
});

showSnippet();
connect();
