// An answer in words and in tables.

import { element } from "./dom.js";
import { percent } from "./matches.js";

const STAGES = ["queue", "decode", "encode", "retrieve", "match", "solve", "total"];

/** What is said first: found or not, how sure, and why. */
export function verdict(answer) {
  return answer.localized ? found(answer) : notFound(answer);
}

function found(answer) {
  const [x, y, z] = answer.cam_center_world.map(value => value.toFixed(2));
  const unit = answer.scale_is_known ? "m" : "of the map's own units";
  const chance = answer.confidence > 0.99 ? "over 99 %" : percent(answer.confidence);
  const bar = element("div", { class: "bar", role: "img", "aria-label": `Confidence ${chance}` },
    element("i"));
  bar.firstChild.style.width = `${100 * answer.confidence}%`;
  const numMatches = answer.references.reduce((sum, reference) => sum + reference.num_matches, 0);
  return [
    element("p", {}, element("span", { class: "verdict localized" }, "Found")),
    element("p", {}, `The camera was at x ${x}, y ${y}, z ${z} ${unit}.`),
    bar,
    element("p", {}, element("strong", {}, `${chance}: ${sureness(answer.confidence)}. `),
      `That is the chance that the pose is right within ${answer.scale_is_known ? "25 cm" : `0.25 ${unit}`} ` +
      "and 10 degrees."),
    element("p", { class: "soft" }, `${answer.num_inliers} of ${numMatches} matches with ` +
      `${answer.references.length} photos of the map agree on it.`),
    answer.reason ? element("p", {}, answer.reason) : null,
    answer.scale_is_known ? null
      : element("p", { class: "refused" }, "The map's scale is not known: its lengths are no metres. " +
        "Chances are calibrated in metres; here they are a guess."),
  ].filter(Boolean);
}

function notFound(answer) {
  return [
    element("p", {}, element("span", { class: "verdict refused" }, "Not found in this map")),
    element("p", { id: "reason" }, answer.reason),
    element("p", { class: "soft" }, "What helps: a sharp photo that shows much of the place, from where the map's " +
      "photos saw it too. An answer that is not sure is never given as one."),
  ];
}

function sureness(confidence) {
  if (confidence >= 0.95) return "almost certainly right";
  return confidence >= 0.8 ? "very likely right" : "probably right";
}

/** All numbers of an answer. */
export function tables(answer) {
  const unit = answer.scale_is_known ? "m" : "units";
  const pose = [];
  if (answer.localized) {
    pose.push(
      ["position (x, y, z)", `${numbers(answer.cam_center_world, 4)} ${unit}`],
      ["± position", answer.position_sigma_m === null ? "not known" : `${answer.position_sigma_m.toFixed(4)} ${unit}`],
      ["quaternion (w, x, y, z)", numbers(answer.quat_wxyz, 5)],
      ["± rotation", answer.rotation_sigma_deg === null ? "not known" : `${answer.rotation_sigma_deg.toFixed(3)}°`],
      ["camera axes", answer.axes]);
  }
  if (answer.geopose) {
    const { lat, lon, h } = answer.geopose.position;
    pose.push(["latitude, longitude", `${lat.toFixed(7)}°, ${lon.toFixed(7)}°`], ["height", `${h.toFixed(2)} m`]);
  }
  pose.push(
    ["focal length", answer.focal_px === null ? "not known" : `${answer.focal_px.toFixed(1)} px`],
    ["confidence", answer.confidence.toFixed(4)],
    ["matches that agree", String(answer.num_inliers)],
    ["map", `${answer.map.name}, revision ${answer.map.revision}`]);
  const stages = STAGES.filter(stage => answer.latency_ms[stage] !== undefined);
  return [
    table(answer.localized ? "The camera, ± one standard deviation" : "What was found", pose),
    table("Time", stages.map(stage => [stage, `${answer.latency_ms[stage].toFixed(1)} ms`]), "number"),
  ];
}

const numbers = (values, digits) => values.map(value => value.toFixed(digits)).join(", ");

function table(caption, rows, kind = null) {
  return element("div", { class: "wide" }, element("table", {}, element("caption", {}, caption), element("tbody", {},
    ...rows.map(([name, value]) => element("tr", {}, element("th", { scope: "row" }, name),
      element("td", { class: kind }, value))))));
}
