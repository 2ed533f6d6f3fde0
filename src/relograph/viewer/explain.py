"""Why a photo was localized where it was, or refused: one HTML file that opens without a server or the network.

It shows what the Localizer went by: the query with the cells that counted, its references with the matches that agree
with the pose and those that do not, the cameras in 3-D, how sure the answer is and of what that was made, and the time
of each stage.
"""

import base64
import html
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float64, UInt8
from PIL import Image

from relograph.errors import DatasetError, GeometryError
from relograph.evaluation.qualitative import ANSWER_COLOR, MAP_COLOR, TRUE_COLOR
from relograph.evaluation.writing import write_whole
from relograph.geometry import Pose, pose_error
from relograph.localization.answer_files import NamedAnswer, sigmas
from relograph.localization.confidence import RIGHT_DEG, RIGHT_M
from relograph.localization.localizer import Answer, Compared, Judged, Localizer, judge
from relograph.localization.localizing import CameraTold, named_answer
from relograph.localization.photos import PhotoInMemory, WorkingSize, read_query
from relograph.localization.prior import Prior
from relograph.localization.queries import Query
from relograph.maps.lengths import in_centimetres
from relograph.models.match_gnn import COARSE_STRIDE
from relograph.models.shipped import Odds
from relograph.viewer.cameras_page import CameraGroup, cameras_page, filled_page

PHOTO_QUALITY = 80
MAP_CAMERAS_SHOWN = 500
GAP = 8
"""Between the two photos of a pair, in pixels of what the network saw."""
WIDEST_BESIDE = 4
"""Of the height of both photos; of wider ones, such as panoramas, one is above the other, as on the service's page."""
LINES_SHOWN = 80
"""Of the matches with a reference: hundreds would hide both photos."""

PhotoOfRow = Callable[[int], UInt8[np.ndarray, "H W 3"] | None]
"""The photo of a row of the map; None where it is not at hand."""


@dataclass(frozen=True)
class Explained:
    """A query's answer with all that led to it."""

    named: NamedAnswer
    compared: Compared | None
    """None where the query was compared with nothing."""
    judged: Judged | None
    query_pixels: UInt8[np.ndarray, "H W 3"] | None
    """As the network saw them."""

    @property
    def inlier(self) -> Bool[np.ndarray, "M"] | None:
        """Matches that agree with the pose; None where no pose was solved for."""
        solved = None if self.judged is None else self.judged.solved
        return None if solved is None or solved.T_world_cam is None else solved.inlier_mask.numpy()


def explain_query(
    localizer: Localizer, query: Query, told: CameraTold | None = None, prior: Prior | None = None
) -> Explained:
    """The answer to a query, as `localize_query` gives it, with what it rests on."""
    camera = None if told is None else told.of(query.size_wh)
    try:
        compared = localizer.compare(query.image, camera=camera, prior=prior)
    except (DatasetError, GeometryError) as error:
        compared = Answer(None, False, 0.0, str(error))
    if isinstance(compared, Answer):
        return Explained(named_answer(query, compared, camera), None, None, None)
    judged = judge(compared, localizer.solver, localizer.calibration)
    pixels = read_query(query.image).pixels
    size = WorkingSize.of(pixels.shape[1], pixels.shape[0])
    return Explained(named_answer(query, judged.answer, camera), compared, judged, size.pixels(pixels))


def write_explanation(
    path: Path,
    explained: Explained,
    T_world_map: Pose,
    photo_of: PhotoOfRow,
    *,
    scale_is_known: bool = True,
    notes: Sequence[str] = (),
) -> None:
    """Write the page of one query; `notes` are sentences about the map that the reader must know."""
    name = explained.named.name
    parts = [_verdict(explained, scale_is_known, notes)]
    if explained.compared is not None:
        assert explained.query_pixels is not None
        references = [
            _reference_pixels(row, explained.compared, photo_of) for row in range(len(explained.compared.rows))
        ]
        parts.append(_query_section(explained, explained.query_pixels))
        parts.append(_references_section(explained, explained.compared, references))
        parts.append(_view_section(explained, explained.compared, references, T_world_map, scale_is_known))
        parts.append(_numbers_section(explained, scale_is_known))
    page = filled_page("explain_page.html", {"title": _escaped(f"{name}: why"), "body": "\n".join(parts)})
    write_whole(path, page.encode())


def cell_weights(explained: Explained) -> dict[tuple[float, float], float]:
    """How much each cell of the query counted, by its middle in pixels, within [0, 1].

    That is the weight of its matches that agree with the pose, over all references; of all its matches where no pose
    was solved for.
    """
    if explained.judged is None:
        return {}
    points = explained.judged.points
    weight = np.ones(len(points.ref_idx)) if points.weight is None else np.asarray(points.weight)
    counts = weight if explained.inlier is None else weight * explained.inlier
    by_cell: dict[tuple[float, float], float] = {}
    for (x, y), count in zip(np.asarray(points.query_xy).tolist(), counts.tolist(), strict=True):
        by_cell[x, y] = by_cell.get((x, y), 0.0) + count
    most = max(by_cell.values(), default=0.0)
    return {cell: value / most for cell, value in by_cell.items() if value > 0} if most > 0 else {}


# The parts of the page


def _verdict(explained: Explained, scale_is_known: bool, notes: Sequence[str]) -> str:
    answer = explained.named.answer
    kind, word = ("localized", "Localized") if answer.localized else ("refused", "Not localized")
    lines = [
        f"<h1>{_escaped(explained.named.name)}</h1>",
        f'<p><span class="verdict {kind}">{word}</span></p>',
    ]
    if explained.judged is not None:
        threshold = explained.judged.odds.threshold
        lines.append(
            f'<div class="bar" role="img" aria-label="Confidence {answer.confidence:.0%}, {threshold:.0%} asked for">'
            f'<i style="width: {100 * answer.confidence:.1f}%"></i><b style="left: {100 * threshold:.1f}%"></b></div>'
            f"<p>The pose is right, {_right_text(scale_is_known)}, with a chance of "
            f"<strong>{answer.confidence:.0%}</strong>; {threshold:.0%} are asked for (the mark in the bar).</p>"
        )
    if answer.reason:
        lines.append(f'<p id="reason">{_escaped(answer.reason)}</p>')
    elif answer.localized:
        lines.append(
            f'<p id="reason">{answer.num_inliers} of {sum(used.num_matches for used in answer.references)} matches '
            f"with {len(answer.references)} references agree on the pose.</p>"
        )
    if not scale_is_known:
        lines.append('<p class="refused">Chances are calibrated in metres. Here they are a guess.</p>')
    lines += [f'<p class="refused note">{_escaped(note)}</p>' for note in notes]
    return "\n".join(lines)


def _right_text(scale_is_known: bool) -> str:
    near = in_centimetres(RIGHT_M, scale_is_known=scale_is_known, digits=0)
    return f"within {near}{'' if scale_is_known else ' of the map'} and {RIGHT_DEG:g} degrees"


def _query_section(explained: Explained, pixels: UInt8[np.ndarray, "H W 3"]) -> str:
    height, width = pixels.shape[:2]
    half = COARSE_STRIDE / 2
    cells = "".join(
        f'<rect class="cell" x="{x - half:g}" y="{y - half:g}" width="{COARSE_STRIDE}" height="{COARSE_STRIDE}" '
        f'opacity="{0.15 + 0.7 * value:.2f}"/>'
        for (x, y), value in cell_weights(explained).items()
    )
    what = (
        "matches agree with the pose" if explained.inlier is not None else "matches were found; no pose was solved for"
    )
    box = f'<svg viewBox="0 0 {width} {height}" style="max-height: 70vh" role="img"'
    return f"""<h2>The photo, and what counted in it</h2>
<svg width="0" height="0" style="position: absolute" aria-hidden="true"><defs>
<g id="query"><image width="{width}" height="{height}" href="{_photo_url(pixels)}"/></g></defs></svg>
<div class="photos"><figure><figcaption>The photo, <span class="soft">as the network saw it</span></figcaption>
{box} aria-label="The query"><use href="#query"/></svg></figure>
<figure><figcaption>Saliency: <span class="soft">yellow cells are those whose {what}; the stronger, the more they
weigh</span></figcaption>{box} aria-label="What counted in the query"><use href="#query" opacity=".45"/>
<g class="cells">{cells}</g></svg></figure></div>"""


def _references_section(
    explained: Explained, compared: Compared, references: Sequence[UInt8[np.ndarray, "H W 3"] | None]
) -> str:
    switches = (
        ""
        if explained.inlier is None
        else (
            '<div class="switches"><label><input type="checkbox" id="show-in" checked><span class="swatch in"></span>'
            "matches that agree with the pose</label>"
            '<label><input type="checkbox" id="show-out" checked><span class="swatch out"></span>'
            "matches that do not</label></div>"
        )
    )
    figures = [_pair(explained, compared, ref, pixels) for ref, pixels in enumerate(references)]
    figures = ['<div class="references">', *figures, "</div>"]
    return "\n".join(["<h2>Its references, and the matches with them</h2>", switches, *figures])


def _pair(explained: Explained, compared: Compared, ref: int, pixels: UInt8[np.ndarray, "H W 3"] | None) -> str:
    used = explained.named.answer.references[ref]
    query_height, query_width = compared.query_hw
    height, width = (query_height, query_width) if pixels is None else pixels.shape[:2]
    if query_width / query_height + width / height > WIDEST_BESIDE:
        whole = max(width, query_width)
        query_left, left, top = (whole - query_width) // 2, (whole - width) // 2, query_height + GAP
        size = f"{whole} {top + height}"
    else:
        query_left, left, top = 0, query_width + GAP, 0
        size = f"{left + width} {max(height, query_height)}"
    assert explained.judged is not None
    points = explained.judged.points
    rows = np.flatnonzero(np.asarray(points.ref_idx) == ref)
    rows = rows[np.linspace(0, len(rows) - 1, min(LINES_SHOWN, len(rows))).astype(int)]  # strong and weak ones
    query_xy, ref_xy = np.asarray(points.query_xy)[rows], np.asarray(points.ref_xy)[rows]
    agrees = np.ones(len(rows), dtype=bool) if explained.inlier is None else explained.inlier[rows]
    lines = [
        f'<g class="{kind}">{_lines(query_xy[some] + [query_left, 0.0], ref_xy[some] + [left, top])}</g>'
        for kind, some in (("out", ~agrees), ("in", agrees))  # those that agree lie on top
    ]
    photo = (
        f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="none" stroke="currentColor"/>'
        if pixels is None
        else f'<image x="{left}" y="{top}" width="{width}" height="{height}" href="{_photo_url(pixels)}"/>'
    )
    drawn = "" if len(rows) == used.num_matches else f", {len(rows)} are drawn"
    caption = (
        f"<strong>{_escaped(used.name)}</strong><br>"
        f'<span class="soft">{used.num_inliers} of {used.num_matches} matches agree{drawn}; similarity '
        f"{used.similarity:.2f}; sees {used.overlap:.0%} of the photo, as the network guesses"
        f"{'' if pixels is not None else '; its photo is not at hand'}</span>"
    )
    label = _escaped(f"The query and {used.name} with {used.num_matches} matches")
    return (
        f'<figure class="reference"><figcaption>{caption}</figcaption><svg class="pair" '
        f'viewBox="0 0 {size}" role="img" aria-label="{label}">'
        f'<use href="#query" x="{query_left}"/>{photo}{"".join(lines)}</svg></figure>'
    )


def _lines(start: Float64[np.ndarray, "n 2"], end: Float64[np.ndarray, "n 2"]) -> str:
    return "".join(
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
        f'<circle cx="{x1:.1f}" cy="{y1:.1f}" r="1.2"/><circle cx="{x2:.1f}" cy="{y2:.1f}" r="1.2"/>'
        for (x1, y1), (x2, y2) in zip(start.tolist(), end.tolist(), strict=True)
    )


def _view_section(
    explained: Explained,
    compared: Compared,
    references: Sequence[UInt8[np.ndarray, "H W 3"] | None],
    T_world_map: Pose,
    scale_is_known: bool,
) -> str:
    """The cameras in 3-D: a page of its own within this one."""
    named = explained.named
    rows = np.linspace(0, len(T_world_map) - 1, min(MAP_CAMERAS_SHOWN, len(T_world_map))).astype(int)
    others = [int(row) for row in rows if row not in compared.rows]
    shown = [
        None if pixels is None else PhotoInMemory(name, pixels, T_world_ref)
        for name, pixels, T_world_ref in zip(compared.names, references, compared.T_world_ref, strict=True)
    ]
    groups = [CameraGroup("references", TRUE_COLOR, compared.T_world_ref, list(compared.names), shown, size_m=0.18)]
    if others:
        groups.insert(0, CameraGroup("map", MAP_COLOR, T_world_map[others], [""] * len(others), size_m=0.1))
    if (T_best := named.answer.T_best) is not None:
        word = "answer" if named.answer.localized else "best guess, refused"
        assert explained.query_pixels is not None
        photo = PhotoInMemory(named.name, explained.query_pixels, T_best)
        groups.append(CameraGroup(word, ANSWER_COLOR, Pose.stack([T_best]), [f"{named.name}: {word}"], [photo]))
    page = cameras_page(groups, title=f"{named.name} in the map", scale_is_known=scale_is_known)
    return f'<h2>Where that is</h2>\n<iframe title="Cameras in 3-D" srcdoc="{html.escape(page, quote=True)}"></iframe>'


def _numbers_section(explained: Explained, scale_is_known: bool) -> str:
    answer = explained.named.answer
    tables = [_table("The pose", _pose_rows(answer, scale_is_known))]
    if explained.judged is not None:
        tables.append(_table("Of what the confidence is made", _sign_rows(answer, explained.judged.odds)))
    total = sum(answer.seconds.values())
    times = [(stage, f"{1000 * seconds:.1f} ms") for stage, seconds in answer.seconds.items()]
    tables.append(_table("Time by stage", [*times, ("together", f"{1000 * total:.1f} ms")]))
    return f'<h2>In numbers</h2>\n<div class="columns">{"".join(tables)}</div>'


def _pose_rows(answer: Answer, scale_is_known: bool) -> list[tuple[str, str]]:
    rows = [("focal length", "not known" if answer.focal_px is None else f"{answer.focal_px:.1f} px")]
    if answer.T_world_cam is not None:
        position_m, rotation_deg = sigmas(answer.covariance)
        rows.append(("centre", " ".join(f"{value:.3f}" for value in answer.T_world_cam.t.tolist())))
        rows.append(("quaternion wxyz", " ".join(f"{value:.4f}" for value in answer.T_world_cam.quat_wxyz().tolist())))
        near = None if position_m is None else in_centimetres(position_m, scale_is_known=scale_is_known)
        rows.append(("sure to", "not known" if near is None else f"{near}, {rotation_deg:.2f}°"))
    if answer.T_solved is not None and answer.T_regressed is not None:
        apart = pose_error(answer.T_solved, answer.T_regressed)
        distance = in_centimetres(float(apart.translation_error_m), scale_is_known=scale_is_known)
        rows.append(("network and solver differ by", f"{distance}, {float(apart.rotation_error_deg):.1f}°"))
    rows.append(("distance told by the matches", "yes" if answer.scale_observable else "no"))
    return rows


def _sign_rows(answer: Answer, odds: Odds) -> list[tuple[str, str]]:
    """The log odds of the answer, term by term."""
    terms = [
        (f"{name} {answer.signs[name]:.2f} × {weight:.2f}", weight * answer.signs[name])
        for name, weight in odds.weight_by_sign.items()
        if name in answer.signs
    ]
    together = odds.bias + sum(value for _, value in terms)
    return [(name, f"{value:+.2f}") for name, value in [("at the outset", odds.bias), *terms, ("log odds", together)]]


def _table(title: str, rows: Sequence[tuple[str, str]]) -> str:
    body = "".join(
        f'<tr><th scope="row">{_escaped(name)}</th><td class="number">{_escaped(value)}</td></tr>'
        for name, value in rows
    )
    return f'<div class="wide"><p><strong>{_escaped(title)}</strong></p><table>{body}</table></div>'


# Photos


def _reference_pixels(ref: int, compared: Compared, photo_of: PhotoOfRow) -> UInt8[np.ndarray, "H W 3"] | None:
    """A reference as the network saw it."""
    photo = photo_of(compared.rows[ref])
    return None if photo is None else WorkingSize.of(photo.shape[1], photo.shape[0]).pixels(photo)


def _photo_url(pixels: UInt8[np.ndarray, "H W 3"]) -> str:
    encoded = io.BytesIO()
    Image.fromarray(pixels).save(encoded, "JPEG", quality=PHOTO_QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(encoded.getvalue()).decode()}"


def _escaped(text: str) -> str:
    return html.escape(text, quote=True)
