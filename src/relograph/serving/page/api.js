// What the page asks of the server. Addresses are relative to the page's own, so a proxy may put a path before all.

const KEY = "relograph-api-key";
const FRAMES_AT_ONCE = 1000;
const PHOTOS_KEPT = 300;

/** The server said no: its status, its code and its sentence. */
export class Refused extends Error {
  constructor(status, code, message, retryAfterS) {
    super(message);
    Object.assign(this, { status, code, retryAfterS });
  }
}

/** Nobody answered. */
export class Away extends Error {}

/** Whether a key may be one: others do not go into a header, and no server makes such. */
export const canBeKey = text => /^[\x20-\x7e]+$/.test(text);
export const keepKey = key => sessionStorage.setItem(KEY, key);
export const hasKey = () => sessionStorage.getItem(KEY) !== null;

export const maps = async () => (await json("maps")).maps;

/** Names of the maps that cannot be read just now, of those that this key may see. */
export const mapsAway = async () => (await (await answerTo("readyz")).json()).not_ready;

/** The frames of a map, some at a time, with how many there are in all. */
export async function* framePages(map, signal) {
  for (let offset = 0, total = Infinity; offset < total;) {
    const path = `maps/${encodeURIComponent(map)}/frames?offset=${offset}&limit=${FRAMES_AT_ONCE}`;
    const page = await json(path, { signal });
    if (!page.frames.length) return;
    offset += page.frames.length;
    total = page.total;
    yield page;
  }
}

/** Where a photo was taken; `options` are fields of the request, left out where they are empty. */
export function localize(map, photo, options, signal) {
  const body = new FormData();
  body.append("image", photo, photo.name || "photo");
  body.append("with_matches", "true");
  for (const [name, value] of Object.entries(options)) if (value) body.append(name, value);
  return json(`maps/${encodeURIComponent(map)}/localize`, { method: "POST", body, signal });
}

const photoUrls = new Map(); // promises of addresses, by path, the one that was used last at the end

/** An address of the small photo of a frame, for as long as it is among the last ones that were asked for. */
export function thumbnail(map, frame) {
  const path = `maps/${encodeURIComponent(map)}/thumbnails/${frame.split("/").map(encodeURIComponent).join("/")}`;
  const url = photoUrls.get(path) ?? fetched(path).then(answer => answer.blob()).then(URL.createObjectURL);
  photoUrls.delete(path);
  photoUrls.set(path, url);
  url.catch(() => photoUrls.delete(path));
  if (photoUrls.size > PHOTOS_KEPT) {
    const [oldest, oldUrl] = photoUrls.entries().next().value;
    photoUrls.delete(oldest);
    oldUrl.then(URL.revokeObjectURL, () => {});
  }
  return url;
}

const json = async (path, options) => (await fetched(path, options)).json();

async function fetched(path, options) {
  const answer = await answerTo(`v1/${path}`, options);
  if (answer.ok) return answer;
  const said = await answer.json().then(body => body.error, () => null);
  const retryAfterS = Number(answer.headers.get("Retry-After")) || null;
  throw new Refused(answer.status, said?.code ?? "unknown", said?.message ?? "", retryAfterS);
}

async function answerTo(path, options = {}) {
  const headers = new Headers(hasKey() ? { Authorization: `Bearer ${sessionStorage.getItem(KEY)}` } : {});
  try {
    return await fetch(new URL(path, document.baseURI), { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Away("The server does not answer.");
  }
}
