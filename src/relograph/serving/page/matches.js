// The photo beside a reference, with lines between the places that were matched. Where both are so wide together that
// they would be low strips beside each other, a panorama for instance, one is above the other.

import { element, svgElement } from "./dom.js";

const GAP = 0.02; // of the width of both; page.css has the same between the photos
const WIDEST_BESIDE = 4; // of the height of both: beyond it one goes above the other
const HIGHEST_ABOVE = 0.5; // of the width, so that a pair above each other is hardly higher than wide
const USUAL_RATIO = 4 / 3;

/** A figure of one pair; `query` is {url, width, height}, without a url where the browser cannot show the photo. */
export function pairFigure(query, reference, frame, referenceUrl, showInView) {
  const { name, num_matches: numMatches, num_inliers: numInliers, similarity, overlap, matches } = reference;
  const drawn = matches?.query_xy.length ?? 0;
  const ratios = [query, frame ?? {}].map(({ width, height }) => width && height ? width / height : USUAL_RATIO);
  const layout = ratios[0] + ratios[1] > WIDEST_BESIDE ? above(ratios) : beside(ratios);
  const photos = element("div", { class: `photos ${layout.kind}` },
    photoOr(query.url, "your photo", "This browser cannot show your photo.", ratios[0], layout.boxes[0]));
  const caption = element("figcaption", {}, element("strong", {}, name), element("br"),
    element("span", { class: "soft" },
      `${numInliers} of ${numMatches} matches agree${drawn < numMatches ? `, ${drawn} are drawn` : ""}; ` +
      `similarity ${similarity.toFixed(2)}; sees ${percent(overlap)} of the photo, as the network guesses`));
  const button = element("button", { type: "button", class: "button quiet" }, "Show its camera");
  button.addEventListener("click", () => showInView(name));
  const place = referencePhoto => photos.replaceChildren(photos.firstChild, referencePhoto, ...lines(matches, layout));
  const referenceOr = (...what) => photoOr(...what, ratios[1], layout.boxes[1]);
  place(referenceOr(null, "", "…"));
  referenceUrl.then(
    url => place(referenceOr(url, `the map's photo ${name}`, "")),
    () => place(referenceOr(null, "", "Its photo is not at hand.")));
  return element("figure", { class: "pair" }, caption, photos, button);
}

export const percent = share => `${Math.round(100 * share)} %`;

// Where both photos are in a frame of width 1, which is `height` high.

/** Both of the same height, next to each other. */
function beside(ratios) {
  const height = (1 - GAP) / (ratios[0] + ratios[1]);
  const widths = ratios.map(ratio => ratio * height);
  return { kind: "beside", height, boxes: [
    { x: 0, y: 0, width: widths[0], height }, { x: 1 - widths[1], y: 0, width: widths[1], height }] };
}

/** One above the other, each in the middle. */
function above(ratios) {
  const widths = ratios.map(ratio => Math.min(1, HIGHEST_ABOVE * ratio));
  const heights = widths.map((width, i) => width / ratios[i]);
  const boxes = widths.map((width, i) => ({ x: (1 - width) / 2, y: i * (heights[0] + GAP), width, height: heights[i] }));
  return { kind: "above", height: heights[0] + GAP + heights[1], boxes };
}

function photoOr(url, alt, without, ratio, box) {
  const made = url ? element("img", { src: url, alt }) : element("div", { class: "no-photo" }, element("span", {}, without));
  made.style.width = `${100 * box.width}%`;
  made.style.aspectRatio = ratio;
  return made;
}

function lines(matches, { height, boxes: [queryBox, referenceBox] }) {
  if (!matches?.query_xy.length) return [];
  const groups = { out: svgElement("g", { class: "out" }), in: svgElement("g", { class: "in" }) }; // these lie on top
  const at = (box, [x, y]) => [box.x + x * box.width, box.y + y * box.height];
  matches.query_xy.forEach((xy, i) => {
    const [x1, y1] = at(queryBox, xy), [x2, y2] = at(referenceBox, matches.ref_xy[i]);
    groups[matches.inlier[i] ? "in" : "out"].append(svgElement("line", { x1, y1, x2, y2 }));
  });
  return [svgElement("svg", { viewBox: `0 0 1 ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" }, groups.out, groups.in)];
}
