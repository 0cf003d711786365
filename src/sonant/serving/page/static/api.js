// Requests to the server that this page came from, and its errors in words.

const KEY_NAME = "sonant-api-key";

export const apiRoot = new URL("v1", document.baseURI);

export const apiKey = {
  get: () => sessionStorage.getItem(KEY_NAME) ?? "",
  set: (key) => (key ? sessionStorage.setItem(KEY_NAME, key) : sessionStorage.removeItem(KEY_NAME)),
};

export class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export function unreachable() {
  return new ServerError("The server cannot be reached. Is it running?", 0);
}

/** Returns a successful response. Throws `ServerError` with what to tell the visitor, or the abort's own error. */
export async function call(path, options = {}) {
  const headers = new Headers(options.headers);
  if (apiKey.get()) authorize(headers);
  let response;
  try {
    response = await fetch(`${apiRoot}/${path}`, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw unreachable();
  }
  if (!response.ok) throw await refusal(response, headers.has("authorization"));
  return response;
}

function authorize(headers) {
  try {
    headers.set("authorization", `Bearer ${apiKey.get()}`);
  } catch {
    throw new ServerError("No API key has such characters.", 401); // nor may a header have them
  }
}

export async function json(path, options) {
  return (await call(path, options)).json();
}

async function refusal(response, keyed) {
  const { status } = response;
  const body = await response.json().catch(() => null);
  const said = sentence(body?.error?.message ?? `the server answered ${status} without saying why`);
  if (status === 401) {
    return new ServerError(keyed ? "The server does not know this API key." : "The server wants an API key.", status);
  }
  if (status === 429) return new ServerError(`The server is busy: ${said} ${retry(response)}`, status);
  if (status === 503) return new ServerError(`The server cannot speak just now: ${said} ${retry(response)}`, status);
  if (status >= 500) return new ServerError(`The server failed: ${said}`, status);
  return new ServerError(`The server refused: ${said}`, status);
}

function retry(response) {
  const seconds = Number(response.headers.get("retry-after"));
  if (!(seconds > 0)) return "Try again in a moment.";
  return `Try again in ${seconds} second${seconds === 1 ? "" : "s"}.`;
}

function sentence(text) {
  return /[.!?]$/.test(text) ? text : `${text}.`;
}
