"""What a request brings: read within limits of size, time and memory, then taken apart. Nothing is written to disk."""

import asyncio
import binascii
import io
import re
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from relograph.environment import installed_version
from relograph.errors import DatasetError
from relograph.scenes.images import TooManyPixelsError, is_heif, read_header
from relograph.serving.config import ServeConfig
from relograph.serving.errors import CLOSING, ServiceError, bad_image, busy, client_gone, invalid, too_large, wrong_type

JSON, FORM = "application/json", "multipart/form-data"
IMAGE = "image"
MAX_PARTS, MAX_FIELD_BYTES, MAX_PART_HEADER_BYTES = 16, 16_384, 2_048
MAX_JPEG_SCANS, SCANS_OF_THE_LARGEST = 100, 20
"""A progressive JPEG has about ten. Each scan is a walk over all pixels, for a few bytes of the file: the largest photo
may have fewer than a small one."""
MAX_JPEG_SEGMENTS = 2000
"""Tables, comments, scans: a hundred would be many, but what lies beside a photo takes one for each 64 KB."""
_JPEG_SEGMENT = re.compile(rb"\xff([\xc0-\xcf\xd8-\xfe])")
"""What stands before each but those within a scan."""
_SCAN, _END = b"\xda", b"\xd9"

M = TypeVar("M", bound=BaseModel)


@dataclass
class Receiving:
    """Memory that bodies take while they come in, of all requests of a process together."""

    max_bytes: int
    num_bytes: int = 0


async def read_body(request: Request, config: ServeConfig, receiving: Receiving) -> bytes:
    """The whole body of a request.

    One that is too large, comes in too slowly, or does not fit beside the others is given up as soon as that is known.
    """
    limit = config.max_body_bytes
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    num_bytes = 0
    try:
        async with asyncio.timeout(config.body_timeout_s):
            async for part in request.stream():
                num_bytes += len(part)
                receiving.num_bytes += len(part)
                parts.append(part)
                if num_bytes > limit:
                    raise _too_large(limit)
                if receiving.num_bytes > receiving.max_bytes:
                    raise busy("too_many_uploads", "Too many photos are coming in at once.", 1)
    except ClientDisconnect:
        raise client_gone() from None
    except TimeoutError:
        raise ServiceError(
            408,
            "body_too_slow",
            f"Expected the whole body within {config.body_timeout_s:g} s, found it still coming in. Send less.",
            CLOSING,
        ) from None
    finally:
        receiving.num_bytes -= num_bytes
    return b"".join(parts)


def _too_large(limit: int) -> ServiceError:
    return too_large(
        f"Expected a body of at most {limit / 1e6:g} MB, found a larger one. Scale the photo down.", close=True
    )


# Taking it apart, which takes a while for a large body: not on the thread that all requests share


def parse_request(content_type: str, body: bytes, options: type[M], json_options: type[M] | None) -> tuple[bytes, M]:
    """The photo's file in a body, and what is said beside it.

    `json_options` are the same with the photo as `image_base64`; None where only a form will do.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind == FORM:
        image, fields = parse_form(content_type, body)
        return image, _validated(options, fields)
    if kind == JSON and json_options is not None:
        try:
            message = json_options.model_validate_json(body)
        except ValidationError as error:
            raise invalid(_in_words(error)) from None
        return _decoded_base64(message.image_base64), message  # type: ignore[attr-defined]  # every such message has it
    expected = FORM if json_options is None else f"{FORM} or {JSON}"
    raise wrong_type(f"Expected a body of the type {expected}, found another. Set Content-Type.")


def parse_form(content_type: str, body: bytes) -> tuple[bytes, dict[str, str]]:
    """The file called `image` in a form, and its other fields."""
    _, parameters = parse_options_header(content_type)
    boundary = parameters.get(b"boundary")
    if not boundary:
        raise invalid("Expected a boundary in the Content-Type of a form, found none. Let your HTTP library set it.")
    parts = _Parts()
    try:
        parser = MultipartParser(
            boundary,
            {
                "on_part_begin": parts.begin,
                "on_header_field": parts.header_field,
                "on_header_value": parts.header_value,
                "on_header_end": parts.header_end,
                "on_part_data": parts.data,
                "on_end": parts.finish,
            },
            max_header_count=8,
            max_header_size=MAX_PART_HEADER_BYTES,
        )
        parser.write(body)
        parser.finalize()
    except (FormParserError, ValueError):
        raise invalid("Expected a whole form, found one that is cut off or damaged. Send it again.") from None
    if not parts.is_whole:
        raise invalid("Expected a whole form, found one that is cut off or damaged. Send it again.")
    fields: dict[str, str] = {}
    image: bytes | None = None
    for part in parts.parts:
        name = part.name
        if name in fields or (name == IMAGE and image is not None):
            raise invalid("Expected every field once, found one twice. Leave one out.")
        if name == IMAGE:
            image = bytes(part.content)
            continue
        if part.is_file and len(part.content) > MAX_FIELD_BYTES:
            raise invalid(f"Expected the photo's file in the field {IMAGE}, found a file in another. Rename the field.")
        if len(part.content) > MAX_FIELD_BYTES:
            raise invalid(f"Expected fields of at most {MAX_FIELD_BYTES} bytes, found a longer one. Send less.")
        try:
            fields[name] = part.content.decode()
        except UnicodeDecodeError:
            raise invalid("Expected fields in UTF-8, found another encoding. Convert them.") from None
    if image is None:
        raise invalid(f"Expected a photo in the field {IMAGE}, found none. Add it.")
    return image, fields


@dataclass
class _Part:
    headers: dict[bytes, bytes] = field(default_factory=dict)
    content: bytearray = field(default_factory=bytearray)

    @property
    def is_file(self) -> bool:
        return b"filename" in parse_options_header(self.headers.get(b"content-disposition", b""))[1]

    @property
    def name(self) -> str:
        disposition, parameters = parse_options_header(self.headers.get(b"content-disposition", b""))
        if disposition != b"form-data" or b"name" not in parameters:
            raise invalid("Expected a name for each part of the form, found none. Let your HTTP library set it.")
        return parameters[b"name"].decode(errors="replace")


@dataclass
class _Parts:
    """What the parser found, part by part."""

    parts: list[_Part] = field(default_factory=list)
    is_whole: bool = False
    _field: bytearray = field(default_factory=bytearray)
    _value: bytearray = field(default_factory=bytearray)

    def begin(self) -> None:
        if len(self.parts) == MAX_PARTS:
            raise invalid(f"Expected at most {MAX_PARTS} parts of a form, found more. Leave some out.")
        self.parts.append(_Part())

    def header_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def header_end(self) -> None:
        self.parts[-1].headers[bytes(self._field).lower()] = bytes(self._value)
        self._field, self._value = bytearray(), bytearray()

    def data(self, data: bytes, start: int, end: int) -> None:
        self.parts[-1].content += data[start:end]

    def finish(self) -> None:
        self.is_whole = True


def _validated(options: type[M], fields: dict[str, Any]) -> M:
    try:
        return options.model_validate(fields)
    except ValidationError as error:
        raise invalid(_in_words(error)) from None


def _in_words(error: ValidationError) -> str:
    """The first thing that is wrong, without repeating what was sent."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(step) for step in first["loc"])[:80]
    known = _printable(where) or "the body"
    return f"{known}: {first['msg'].rstrip('.')}. Correct this field; see /docs for what is expected."


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _decoded_base64(text: str) -> bytes:
    try:
        return binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except (ValueError, UnicodeEncodeError):
        raise invalid("image_base64: expected base64, found something else. Encode the photo's file.") from None


# Photos


def taken_formats() -> tuple[str, ...]:
    """What photos may be."""
    return ("JPEG", "PNG", "WebP") if installed_version("pillow-heif") is None else ("JPEG", "PNG", "WebP", "HEIC")


def check_photo(data: bytes, max_pixels: int) -> tuple[int, int]:
    """Width and height of an upright photo of a kind that is taken, by its header: nothing is decoded."""
    is_jpeg = data.startswith(b"\xff\xd8\xff")
    is_webp = data.startswith(b"RIFF") and data[8:12] == b"WEBP"
    is_taken = (
        is_jpeg or is_webp or data.startswith(b"\x89PNG\r\n\x1a\n") or (is_heif(data) and "HEIC" in taken_formats())
    )
    if not is_taken:
        raise wrong_type(f"Expected a photo as {', '.join(taken_formats())}, found something else. Convert it.")
    num_scans = _num_jpeg_scans(data) if is_jpeg else 0
    try:
        width, height = read_header(io.BytesIO(data), "The photo").upright_size_wh
    except TooManyPixelsError:
        raise too_large(
            f"Expected at most {max_pixels / 1e6:g} megapixels, found more. Scale the photo down."
        ) from None
    except DatasetError as error:
        raise bad_image(str(error)) from None
    if width * height > max_pixels:
        raise too_large(
            f"Expected at most {max_pixels / 1e6:g} megapixels, found {width} x {height}. Scale the photo down."
        )
    most = min(MAX_JPEG_SCANS, SCANS_OF_THE_LARGEST * max_pixels // (width * height))
    if num_scans > most:
        raise bad_image(
            f"Expected at most {most} scans in a JPEG of {width} x {height}, found {num_scans}. Save it anew."
        )
    return width, height


def _num_jpeg_scans(data: bytes) -> int:
    """Scans of a JPEG up to its end, behind which phones put previews and videos that nobody decodes."""
    num_scans, at = 0, 2
    for _ in range(MAX_JPEG_SEGMENTS):
        segment = _JPEG_SEGMENT.search(data, at)
        if segment is None or segment[1] == _END:
            return num_scans
        num_scans += segment[1] == _SCAN
        at = segment.end() + int.from_bytes(data[segment.end() : segment.end() + 2], "big")
    raise bad_image(f"Expected a JPEG of at most {MAX_JPEG_SEGMENTS} segments, found more. Save it anew.")
