// The page: a map and a photo go in; what comes back is shown, whatever it is.

import { tables, verdict } from "./answer.js";
import { Away, Refused, canBeKey, framePages, hasKey, keepKey, localize, maps, mapsAway, thumbnail } from "./api.js";
import { byId, element } from "./dom.js";
import { pairFigure } from "./matches.js";

const PREVIEW_PX = 1024;
const LOOK_AGAIN_S = 2; // for maps that are away

let map = null; // the summary of the map that was chosen
let frames = new Map(); // its frames by name, as far as they are here
let photo = null; // the file that was chosen
let preview = null; // the address of what the browser can show of it
let shown = { references: [], answer: null }; // cameras of the last answer
let reading = new AbortController(); // of the map's frames
let asking = null; // of a photo
export let view = null; // null where there is no WebGL

// The map

async function start() {
  await withProblemsTold(async () => {
    const found = await maps();
    if (!found.length) throw withoutMaps(await mapsAway());
    byId("map").replaceChildren(...found.map(({ name }) => element("option", { value: name }, name)));
    byId("map-choice").hidden = found.length === 1;
    byId("map").onchange = () => openMap(found.find(({ name }) => name === byId("map").value));
    openMap(found[0]);
  }, start);
}

/** Why there is no map to choose. */
function withoutMaps(away) {
  return away.length
    ? new Refused(503, "map_unavailable", `The server cannot read ${away.join(", ")}. This page tries again by itself.`, LOOK_AGAIN_S)
    : new Refused(null, "no_maps", "This server has no map, or none that your key may see.");
}

function openMap(chosen) {
  map = chosen;
  stopAsking();
  forgetAnswer();
  say(null);
  byId("about-map").textContent = [
    `Map ${map.name}: ${counted(map.num_frames, "photo")}`, map.scale_is_known ? null : "scale not known",
    map.georeferenced ? "georeferenced" : null].filter(Boolean).join(", ");
  reading.abort();
  reading = new AbortController();
  readFrames(reading.signal);
  if (photo) ask();
}

async function readFrames(signal) {
  frames = new Map();
  view?.clear();
  choose(null);
  byId("frames").replaceChildren();
  byId("frames-count").textContent = "(0)";
  await withProblemsTold(async () => {
    for await (const page of framePages(map.name, signal)) {
      const cameras = page.frames.map(frame => ({ ...frame, group: "map" }));
      for (const camera of cameras) frames.set(camera.name, camera);
      byId("frames").append(...cameras.map(({ name }) => element("option", { value: name }, name)));
      view?.addMapCameras(cameras);
      const isWhole = frames.size >= page.total;
      byId("frames-count").textContent = isWhole ? `(${count(page.total)})` : `(${count(frames.size)} of ${count(page.total)} so far)`;
      drawLegend();
    }
  }, () => readFrames(signal));
}

// The photo

async function take(file) {
  photo = file;
  forgetAnswer();
  if (preview) URL.revokeObjectURL(preview);
  preview = null;
  byId("photo").hidden = true;
  byId("photo-note").textContent = file.name;
  const made = await previewOf(file);
  if (photo !== file) return; // another one was chosen meanwhile
  preview = made;
  if (preview) {
    Object.assign(byId("photo"), { src: preview, alt: "your photo", hidden: false });
  } else {
    byId("photo-note").textContent = `${file.name} (this browser cannot show it)`;
  }
  ask();
}

/** A small upright copy, as phones take photos that are too large to draw many times; null where it is no image here. */
async function previewOf(file) {
  const address = URL.createObjectURL(file);
  try {
    const image = new Image();
    image.src = address;
    await image.decode();
    const { naturalWidth: width, naturalHeight: height } = image, scale = Math.min(1, PREVIEW_PX / Math.max(width, height));
    const canvas = element("canvas", { width: Math.round(scale * width), height: Math.round(scale * height) });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    const blob = await new Promise(done => canvas.toBlob(done, "image/jpeg", 0.9));
    return URL.createObjectURL(blob);
  } catch {
    return null;
  } finally {
    URL.revokeObjectURL(address);
  }
}

async function ask() {
  if (!map || !photo || !byId("options-form").reportValidity()) return;
  stopAsking();
  forgetAnswer();
  say(null);
  const mine = asking = new AbortController();
  showWorking(true);
  const options = {
    focal_px: byId("focal").value, solver: byId("solver").value, num_references: byId("num-references").value };
  await withProblemsTold(async () => {
    const answer = await localize(map.name, photo, options, mine.signal);
    if (asking === mine) show(answer);
  }, ask);
  if (asking === mine) stopAsking();
}

function stopAsking() {
  asking?.abort();
  asking = null;
  showWorking(false);
}

function showWorking(isWorking) {
  byId("working").hidden = !isWorking;
  byId("again").disabled = isWorking || !photo;
}

// The answer

function show(answer) {
  byId("verdict").replaceChildren(...verdict(answer));
  const references = answer.references.map(({ name, T_world_cam }) =>
    ({ ...frames.get(name), name, T_world_cam, group: "references" }));
  const { T_world_cam, focal_px, width, height } = answer; // sizes by the server: this browser may not know the format
  const pose = { name: photo.name, T_world_cam, focal_px, width, height, group: "answer" };
  shown = { references, answer: answer.localized ? pose : null };
  view?.showAnswer(references, shown.answer, photoOf);
  drawLegend();

  byId("pairs").replaceChildren(...answer.references.map(reference => pairFigure(
    { url: preview, width, height }, reference, frames.get(reference.name), thumbnail(map.name, reference.name),
    name => choose(references.find(camera => camera.name === name), { goThere: true }))));
  byId("references").hidden = !answer.references.length;
  byId("match-switches").hidden = !answer.localized;
  byId("tables").replaceChildren(...tables(answer));
  byId("json").textContent = JSON.stringify(answer, null, 1);
  URL.revokeObjectURL(byId("download").href);
  byId("download").href = URL.createObjectURL(new Blob([byId("json").textContent], { type: "application/json" }));
  byId("copied").textContent = "";
  byId("numbers").hidden = false;
}

function forgetAnswer() {
  shown = { references: [], answer: null };
  for (const id of ["verdict", "pairs", "tables"]) byId(id).replaceChildren();
  byId("references").hidden = byId("numbers").hidden = true;
  view?.showAnswer([], null, photoOf);
  drawLegend();
}

// Cameras

const photoOf = camera => camera.group === "answer"
  ? (preview ? Promise.resolve(preview) : null)
  : thumbnail(map.name, camera.name);

/** Show one camera's photo and mark it in the view; null shows none. */
async function choose(camera, options) {
  view?.choose(camera, options);
  const card = byId("chosen"), [caption, image] = card.children;
  card.hidden = !camera;
  byId("frames").value = camera && frames.has(camera.name) ? camera.name : "";
  if (!camera) return;
  const where = [0, 1, 2].map(i => camera.T_world_cam[i][3].toFixed(2)).join(", ");
  const kind = { map: "map", references: "reference", answer: "answer" }[camera.group];
  caption.textContent = `${camera.name} (${kind}), at ${where}`;
  image.hidden = true;
  image.dataset.of = camera.name;
  if (options?.goThere) byId("stage").scrollIntoView({ block: "nearest" });
  const url = await Promise.resolve(photoOf(camera)).catch(() => null);
  if (image.dataset.of !== camera.name) return;
  if (url) Object.assign(image, { src: url, alt: `the photo ${camera.name}`, hidden: false });
  else caption.textContent += ". Its photo is not at hand.";
}

function drawLegend() {
  const numbers = { map: frames.size, references: shown.references.length, answer: shown.answer ? 1 : 0 };
  const wasShown = group => byId(`show-${group}`)?.checked ?? true;
  const labels = Object.entries(numbers).filter(([group, number]) => group === "map" || number).map(([group, number]) => {
    const tick = element("input", { type: "checkbox", id: `show-${group}`, checked: wasShown(group) });
    tick.addEventListener("change", () => view?.setShown(group, tick.checked));
    return element("label", {}, tick, element("span", { class: `swatch ${group}` }), `${group} (${count(number)})`);
  });
  byId("legend").hidden = !view || !frames.size;
  byId("legend").replaceChildren(byId("legend").firstElementChild, ...labels);
  for (const group of Object.keys(numbers)) view?.setShown(group, wasShown(group));
  if (view && frames.size) {
    byId("grid-note").textContent = ` Squares of ${view.gridStep} ${map.scale_is_known ? "m" : "of the map's own units"}.`;
  }
}

// What may go wrong

/** Do something; where it fails, say why and how to go on. `again` does it once more. */
async function withProblemsTold(something, again) {
  try {
    await something();
  } catch (error) {
    if (error.name === "AbortError") return;
    if (!(error instanceof Refused || error instanceof Away)) throw error;
    if (error.status === 401) return askForKey(again);
    const isGone = error.status === 404;
    if (isGone) byId("about-map").textContent = "relograph";
    const onward = isGone ? start : isWorthRepeating(error) ? again : null; // there may be other maps
    say(...problem(error), onward, error.retryAfterS, error.status === 503);
  }
}

const isWorthRepeating = error => error instanceof Away || error.status === 429 || error.status >= 500;

/** A heading and a sentence. */
function problem(error) {
  if (error instanceof Away) {
    return ["The server does not answer.", "Is it running, and is this device in its network? Nothing is lost: try again when it is back."];
  }
  const headings = {
    403: "This key may not do that.", 404: "That is not there any more.", 413: "This photo is too large for the server.",
    415: "The server cannot read this kind of file.", 429: "The server is busy.", 503: "The map is away just now.",
    bad_image: "The server cannot read this file as a photo.", no_maps: "There is no map to look in.",
  };
  const heading = headings[error.status] ?? headings[error.code] ?? "The server cannot answer that.";
  const busy = error.status === 429 ? `Many photos wait before yours. Try again in ${counted(error.retryAfterS ?? 1, "second")}.` : null;
  const sentence = busy ?? (error.message || `It answered with the status ${error.status}.`);
  return [heading, sentence[0].toUpperCase() + sentence.slice(1)];
}

/** Say what is wrong; with `again` there is a button for it, which waits where the server asked for that and then may
 * press itself. */
function say(heading, sentence, again, waitS, pressesItself) {
  const box = byId("problem");
  clearInterval(say.clock);
  box.hidden = !heading;
  if (!heading) return box.replaceChildren();
  box.replaceChildren(element("p", {}, element("strong", {}, heading)), element("p", {}, sentence));
  if (!again) return;
  const button = element("button", { type: "button", class: "button" }, "Try again");
  button.addEventListener("click", () => { say(null); again(); });
  box.append(button);
  if (!waitS) return;
  const until = performance.now() + 1000 * waitS;
  const tick = () => {
    const left = Math.ceil((until - performance.now()) / 1000);
    button.disabled = left > 0;
    button.textContent = left > 0 ? `Try again in ${left} s` : "Try again";
    if (left > 0) return;
    clearInterval(say.clock);
    if (pressesItself) button.click();
  };
  say.clock = setInterval(tick, 250);
  tick();
}

function askForKey(again) {
  const form = byId("key-form");
  form.hidden = false;
  if (hasKey()) byId("key-note").textContent = "The server does not know the key that it was given. Type another one.";
  byId("key").focus();
  form.onsubmit = event => {
    event.preventDefault();
    const key = byId("key").value.trim();
    if (!canBeKey(key)) {
      byId("key-note").textContent = "A key has plain letters, digits and signs only, and this one has others. Copy it again.";
      return;
    }
    keepKey(key);
    form.hidden = true;
    byId("key").value = "";
    again();
  };
}

// Small things

const count = number => number.toLocaleString("en");
const counted = (number, thing) => `${count(number)} ${thing}${number === 1 ? "" : "s"}`;

async function copyJson() {
  const text = byId("json").textContent;
  try {
    await navigator.clipboard.writeText(text); // only where the page came by https or from this very machine
    byId("copied").textContent = "Copied.";
  } catch {
    byId("json").closest("details").open = true;
    getSelection().selectAllChildren(byId("json"));
    byId("copied").textContent = "Selected: copy it by Ctrl+C or a long press.";
  }
}

function listen() {
  byId("take-part").hidden = !navigator.maxTouchPoints; // what has a touch screen has a camera
  for (const id of ["choose", "take"]) {
    byId(id).addEventListener("change", event => {
      if (event.target.files[0]) take(event.target.files[0]);
      event.target.value = ""; // so that the same file can be chosen again
    });
  }
  // A photo may be dropped anywhere: beside the frame, the browser would leave the page for it.
  for (const [kind, isOver] of [["dragover", true], ["dragleave", false], ["drop", false]]) {
    document.addEventListener(kind, event => {
      event.preventDefault();
      byId("drop").classList.toggle("over", isOver);
    });
  }
  document.addEventListener("drop", event => { if (event.dataTransfer.files[0]) take(event.dataTransfer.files[0]); });
  document.addEventListener("paste", event => { if (event.clipboardData.files[0]) take(event.clipboardData.files[0]); });
  byId("options-form").addEventListener("submit", event => { event.preventDefault(); ask(); });
  byId("stop").addEventListener("click", () => {
    stopAsking();
    say("Stopped.", "The photo was not localized.", ask);
  });
  byId("frames").addEventListener("change", event => choose(frames.get(event.target.value), { goThere: true }));
  byId("close-chosen").addEventListener("click", () => { choose(null); byId("canvas").focus(); });
  byId("copy").addEventListener("click", copyJson);
  byId("closer").addEventListener("click", () => view?.orbit.closer(0.8));
  byId("away").addEventListener("click", () => view?.orbit.closer(1 / 0.8));
  byId("above").addEventListener("click", () => view?.orbit.fromAbove());
  byId("whole").addEventListener("click", () => view?.showAll());
}

/** The view is loaded apart, as all else works without it. */
async function openView() {
  const context = byId("canvas").getContext("webgl2", { antialias: true });
  if (context) {
    const { CameraView } = await import("./view3d.js");
    view = new CameraView(byId("canvas"), context, choose);
  } else {
    for (const id of ["canvas", "view-buttons", "view-note"]) byId(id).hidden = true;
    byId("no-canvas").hidden = false;
    byId("stage").classList.add("flat");
  }
}

listen();
await openView();
await start();
