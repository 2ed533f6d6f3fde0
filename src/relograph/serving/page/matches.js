// The photo beside a reference, with lines between the places that were matched.

import { element, svgElement } from "./dom.js";

const GAP = 0.02; // of the width of both; page.css has the same between the photos
const USUAL_RATIO = 4 / 3;

/** A figure of one pair; `query` is {url, width, height}, without a url where the browser cannot show the photo. */
export function pairFigure(query, reference, frame, referenceUrl, showInView) {
  const { name, num_matches: numMatches, num_inliers: numInliers, similarity, overlap, matches } = reference;
  const drawn = matches?.query_xy.length ?? 0;
  const ratios = [query, frame ?? {}].map(({ width, height }) => width && height ? width / height : USUAL_RATIO);
  const photos = element("div", { class: "photos" },
    photoOr(query.url, "your photo", "This browser cannot show your photo.", ratios[0]));
  const caption = element("figcaption", {}, element("strong", {}, name), element("br"),
    element("span", { class: "soft" },
      `${numInliers} of ${numMatches} matches agree${drawn < numMatches ? `, ${drawn} are drawn` : ""}; ` +
      `similarity ${similarity.toFixed(2)}; sees ${percent(overlap)} of the photo, as the network guesses`));
  const button = element("button", { type: "button", class: "button quiet" }, "Show its camera");
  button.addEventListener("click", () => showInView(name));
  const place = referencePhoto => photos.replaceChildren(photos.firstChild, referencePhoto, ...lines(matches, ratios));
  place(photoOr(null, "", "…", ratios[1]));
  referenceUrl.then(
    url => place(photoOr(url, `the map's photo ${name}`, "", ratios[1])),
    () => place(photoOr(null, "", "Its photo is not at hand.", ratios[1])));
  return element("figure", { class: "pair" }, caption, photos, button);
}

export const percent = share => `${Math.round(100 * share)} %`;

/** A photo as high as its neighbour: beside each other, widths are as the ratios are. */
function photoOr(url, alt, without, ratio) {
  const made = url ? element("img", { src: url, alt }) : element("div", { class: "no-photo" }, element("span", {}, without));
  made.style.flexGrow = ratio;
  made.style.aspectRatio = ratio;
  return made;
}

function lines(matches, [queryRatio, referenceRatio]) {
  if (!matches?.query_xy.length) return [];
  const width = (queryRatio + referenceRatio) / (1 - GAP), left = queryRatio + GAP * width;
  const groups = { out: svgElement("g", { class: "out" }), in: svgElement("g", { class: "in" }) }; // these lie on top
  matches.query_xy.forEach(([x, y], i) => {
    const [refX, refY] = matches.ref_xy[i];
    groups[matches.inlier[i] ? "in" : "out"].append(
      svgElement("line", { x1: x * queryRatio, y1: y, x2: left + refX * referenceRatio, y2: refY }));
  });
  const viewBox = `0 0 ${width} 1`;
  return [svgElement("svg", { viewBox, preserveAspectRatio: "none", "aria-hidden": "true" }, groups.out, groups.in)];
}
