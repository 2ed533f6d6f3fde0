"""The addresses that the service answers at."""

import asyncio
import gc
import io
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Annotated, Any, TypeVar

from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

import relograph
from relograph.environment import installed_version
from relograph.errors import DatasetError, GeometryError, RelographError
from relograph.freed_memory import give_back_freed_memory
from relograph.geometry import Camera
from relograph.localization.answer_files import is_tall
from relograph.localization.localizer import Answer, SeenQuery, see_query
from relograph.localization.localizing import CameraTold
from relograph.localization.photos import AnyCamera, PhotoFile, expected_by_exif
from relograph.localization.prior import Prior, ToldPrior
from relograph.maps.adding import EncodedPhotos, encode_photos
from relograph.maps.records import MapFrame, MapSettings
from relograph.models.folding import fold_match_gnn
from relograph.scenes.camera_models import parse_camera_line
from relograph.scenes.images import read_header
from relograph.scenes.names import pose_from_matrix, pose_from_quat_wxyz, safe_name, sequence_of
from relograph.serving import messages
from relograph.serving.answering import Outcome
from relograph.serving.bodies import FORM, JSON, check_photo, parse_request, read_body
from relograph.serving.errors import CLIENT_GONE, ServiceError, bad_image, busy, invalid, not_found
from relograph.serving.guarding import Guard, error_response
from relograph.serving.messages import FrameOptions, LocalizeJson, LocalizeOptions
from relograph.serving.metrics import CONTENT_TYPE
from relograph.serving.page_files import INDEX, PageFile, page_files
from relograph.serving.served_maps import ServedMap
from relograph.serving.service import Caller, Service
from relograph.serving.wording import Answered, frame_message, frame_messages, localize_answer, map_details, map_summary

MAX_FRAMES = 1000
"""In one answer."""
LARGE_PIXELS = 16_000_000
"""Of photos after which memory is given back."""
T = TypeVar("T")


def create_app(service: Service) -> FastAPI:
    """The application around a service, which starts and stops with it."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await asyncio.to_thread(service.start)
        gc.freeze()  # else all of torch is looked through for garbage now and then, and nobody is answered meanwhile
        yield
        await asyncio.to_thread(service.stop)

    config = service.config
    middleware = [Middleware(Guard, config=config, metrics=service.metrics)]
    if config.cors_origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=config.cors_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "X-Request-ID"],
            expose_headers=["Retry-After", "X-Request-ID"],
        )
        middleware.append(cors)
    app = FastAPI(
        title="relograph",
        version=relograph.__version__,
        description="Tells where a photo was taken: its camera's pose in a map.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # behind a proxy such an answer would lead from https to http
        middleware=middleware,
        lifespan=lifespan,
        generate_unique_id_function=lambda route: route.name,
        responses=_errors(421, 431),
    )
    app.add_exception_handler(RelographError, _on_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_bad_parameters)
    _add_pages(app, service)
    _add_operations(app, service)
    _add_maps(app, service)
    _add_changes(app, service)
    app.openapi = partial(_openapi, app)  # type: ignore[method-assign]  # as FastAPI's documents say
    return app


# Who asks


_BEARER = HTTPBearer(auto_error=False, description="A key that `relograph serve keys create` made.")


async def _caller(request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]) -> Caller:
    service: Service = request.app.state.service
    return service.caller(request.headers.get("authorization"))


AnyCaller = Annotated[Caller, Depends(_caller)]


# The page, and what operators look at


def _add_pages(app: FastAPI, service: Service) -> None:
    app.state.service = service
    page, reference = page_files("page"), page_files("reference")

    def file_of(files: dict[str, PageFile], name: str, request: Request) -> Response:
        if name not in files:
            raise not_found()
        return files[name].response(request)

    @app.get("/", include_in_schema=False)
    async def index(request: Request) -> Response:
        return file_of(page, INDEX, request)

    @app.get("/page/{name:path}", include_in_schema=False)
    async def page_file(name: str, request: Request) -> Response:
        return file_of(page, name, request)

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        return file_of(reference, INDEX, request)

    @app.get("/docs/{name:path}", include_in_schema=False)
    async def docs_file(name: str, request: Request) -> Response:
        return file_of(reference, name, request)


def _add_operations(app: FastAPI, service: Service) -> None:
    # Load balancers ask by HEAD: uvicorn leaves out the body of what GET says.
    @app.head("/healthz", include_in_schema=False)
    @app.get("/healthz", response_model=messages.Health, tags=["operations"])
    async def health() -> Response:
        """Whether the process lives."""
        return _json(messages.Health())

    @app.head("/readyz", include_in_schema=False)
    @app.get(
        "/readyz",
        response_model=messages.Readiness,
        tags=["operations"],
        responses={503: {"model": messages.Readiness}},
    )
    async def readiness(caller: AnyCaller) -> Response:
        """Whether every map can be asked; the names of those that cannot are for those who may see them."""
        away = [name for name, served in service.maps.items() if served.is_away]
        shown = [name for name in away if caller.is_known and caller.may_see(name)]
        return _json(messages.Readiness(status="not ready" if away else "ready", not_ready=shown), 503 if away else 200)

    @app.get("/metrics", tags=["operations"], responses={200: {"content": {"text/plain": {}}}, **_errors(401, 403)})
    def metrics(caller: AnyCaller) -> Response:
        """What Prometheus reads, of all processes of this service."""
        if not service.config.open_metrics:
            caller.require_all_maps()
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)


# Maps and their photos


def _add_maps(app: FastAPI, service: Service) -> None:
    @app.get("/v1/maps", response_model=messages.Maps, tags=["maps"], responses=_errors(401))
    def list_maps(caller: AnyCaller) -> Response:
        """The maps that can be asked now."""
        caller.require_known()
        shown = [served for name, served in service.maps.items() if caller.may_see(name) and not served.is_away]
        writable = service.may_change(caller)
        summaries = [map_summary(served.name, served.now, writable=writable) for served in shown]
        return _json(messages.Maps(maps=summaries))

    @app.get("/v1/maps/{map}", response_model=messages.MapDetails, tags=["maps"], responses=_errors(401, 404, 422, 503))
    def show_map(map: str, caller: AnyCaller) -> Response:
        """A map, and where its cameras are."""
        served = service.map(map, caller)
        return _json(map_details(map, served.now, writable=service.may_change(caller)))

    @app.get(
        "/v1/maps/{map}/frames", response_model=messages.Frames, tags=["maps"], responses=_errors(401, 404, 422, 503)
    )
    def list_frames(
        map: str,
        caller: AnyCaller,
        offset: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_FRAMES)] = MAX_FRAMES,
    ) -> Response:
        """A map's photos, in the order in which they came."""
        moment = service.map(map, caller).now
        rows = range(len(moment.frames))[offset : offset + limit]
        frames = frame_messages(moment, rows)
        return _json(messages.Frames(total=len(moment.frames), offset=offset, frames=frames))

    @app.get(
        "/v1/maps/{map}/thumbnails/{frame:path}",
        tags=["maps"],
        response_class=Response,
        responses={200: {"content": {"image/jpeg": {}}}, **_errors(401, 404, 422, 503)},
    )
    async def show_thumbnail(map: str, frame: str, request: Request, caller: AnyCaller) -> Response:
        """The small photo that the map keeps, as the network saw it."""
        served = service.map(map, caller)
        return await served.read(partial(_thumbnail, served, frame, request.headers.get("if-none-match", "")))

    @app.post(
        "/v1/maps/{map}/localize",
        response_model=messages.LocalizeAnswer,
        tags=["localizing"],
        responses=_errors(401, 403, 404, 408, 413, 415, 422, 429, 503),
        openapi_extra=_body(messages.LocalizeForm, LocalizeJson),
    )
    async def localize(map: str, request: Request, caller: AnyCaller) -> Response:
        """Where a photo was taken; one that is not sure enough is refused, with `localized` false and a reason."""
        served = service.map(map, caller)
        moment = served.now
        service.answering.require_room()
        body = [await read_body(request, service.config, service.receiving)]
        with service.answering.accepted(), _let_go(body):
            content_type = request.headers.get("content-type", "")
            reading = service.answering.decode(partial(_read_query, content_type, body, service.config.max_pixels))

            async def answer() -> Response:
                query = await reading
                options = query.options

                def word(outcome: Outcome) -> Response:
                    total_s = perf_counter() - request.state.began
                    return _answer_response(service, Answered(map, moment, options, query.size_wh, outcome, total_s))

                return await service.answering.answer(
                    served, moment, query.seen, query.prior, options.num_references, options.solver, word
                )

            return await _unless_gone(request, answer(), service)


def _thumbnail(served: ServedMap, frame: str, known_etags: str) -> Response:
    moment = served.now
    row = moment.row_by_name.get(frame)
    if row is None:
        raise not_found()
    etag = f'"{moment.frames[row].data_sha256[:32]}"'
    headers = {"ETag": etag, "Cache-Control": "private, max-age=60"}
    if etag in known_etags:
        return Response(status_code=304, headers=headers)
    try:
        jpeg = moment.jpeg(row)
    except RelographError as error:
        raise served.reading(error) from error
    return Response(jpeg, headers=headers, media_type="image/jpeg")


@dataclass(frozen=True)
class _Query:
    options: LocalizeOptions
    seen: SeenQuery
    prior: Prior | None
    size_wh: tuple[int, int]


@contextmanager
def _let_go(body: list[bytes]) -> Iterator[None]:
    """Forgets a body that nobody took: who was to read it may hold the list long after the client has gone."""
    try:
        yield
    finally:
        body.clear()


def _read_query(content_type: str, body: list[bytes], max_pixels: int) -> _Query:
    """A query from a request's body, which is taken."""
    data, options = parse_request(content_type, body.pop(), LocalizeOptions, LocalizeJson)
    if options.solver == "geometric" and installed_version("poselib") is None:
        raise invalid("solver: expected auto or regress, found geometric, for which this service lacks PoseLib.")
    size_wh = check_photo(data, max_pixels)
    with_camera = _camera(options.focal_px, options.camera)
    try:
        seen = see_query(data, with_camera.of(size_wh))
        prior = None if options.prior is None else _told_prior(options.prior, options).of(is_tall=is_tall(size_wh))
    except (DatasetError, GeometryError) as error:
        raise invalid(str(error)) from None
    finally:
        if size_wh[0] * size_wh[1] > LARGE_PIXELS:
            give_back_freed_memory()
    if isinstance(seen, Answer):
        raise bad_image(seen.reason)
    return _Query(options, seen, prior, size_wh)


def _told_prior(prior: messages.Prior, options: LocalizeOptions) -> ToldPrior:
    quat_wxyz = prior.quat_wxyz or (1.0, 0.0, 0.0, 0.0)
    T_world_axes = pose_from_quat_wxyz(quat_wxyz, prior.cam_center_world, "prior")
    return ToldPrior(T_world_axes, prior.quat_wxyz is not None, options.axes, prior.radius_m)


def _camera(focal_px: float | None, line: str | None) -> CameraTold:
    try:
        return CameraTold(focal_px, None if line is None else parse_camera_line(line, "camera"))
    except RelographError as error:
        raise invalid(str(error)) from None


def _answer_response(service: Service, answered: Answered) -> Response:
    message, answer = localize_answer(answered), answered.outcome.answer
    outcome = "localized" if answer.localized else "refused"
    seconds = {"queue": answered.outcome.queue_s, **answer.seconds}
    service.metrics.answered(answered.map_name, outcome, answer.confidence, seconds)
    return _json(message)


async def _unless_gone(request: Request, work: Awaitable[Response], service: Service) -> Response:
    """What `work` gives, which is given up when its client has gone or its time is up."""
    limit_s = service.config.query_timeout_s
    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    try:
        done, _ = await asyncio.wait({working, watching}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if working in done:
            return working.result()
        if watching in done:
            return Response(status_code=CLIENT_GONE)
        raise busy("too_slow", f"The query waited for longer than {limit_s:g} s.", service.answering.retry_after_s)
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.wait({working, watching})  # what is given up is out of the queue before its answer is out


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


# Changes


def _add_changes(app: FastAPI, service: Service) -> None:
    @app.post(
        "/v1/maps/{map}/frames",
        response_model=messages.Frame,
        status_code=201,
        tags=["changing"],
        responses={
            200: {"model": messages.Frame, "description": "The map had it already."},
            **_errors(401, 403, 404, 408, 409, 413, 415, 422, 429, 503),
        },
        openapi_extra=_body(messages.FrameForm),
    )
    async def add_frame(map: str, request: Request, caller: AnyCaller) -> Response:
        """Takes a posed photo into the map; `T_world_cam` is that of the upright photo."""
        served = service.map_to_change(map, caller)
        _ = served.now
        service.answering.require_room()
        body = [await read_body(request, service.config, service.receiving)]
        with service.answering.accepted(), _let_go(body):
            content_type = request.headers.get("content-type", "")
            photo = await service.answering.decode(partial(_read_photo, content_type, body, service.config.max_pixels))
            return await _add(service, served, photo)

    @app.delete(
        "/v1/maps/{map}/frames/{frame:path}",
        status_code=204,
        tags=["changing"],
        responses=_errors(401, 403, 404, 422, 503),
    )
    async def remove_frame(map: str, frame: str, caller: AnyCaller) -> Response:
        """Takes a photo out of the map."""
        served = service.map_to_change(map, caller)
        _ = served.now
        await served.remove(frame)
        return Response(status_code=204)


def _read_photo(content_type: str, body: list[bytes], max_pixels: int) -> PhotoFile:
    """A posed photo from a request's body, which is taken."""
    data, options = parse_request(content_type, body.pop(), FrameOptions, None)
    size_wh = check_photo(data, max_pixels)
    camera: AnyCamera = _camera(options.focal_px, options.camera).of(size_wh)
    try:
        name = safe_name(options.name, "name")
        T_world_cam = pose_from_matrix(options.T_world_cam, "T_world_cam")
        focal_px = read_header(io.BytesIO(data), name).focal_px
        if camera is None and focal_px is not None:
            camera = expected_by_exif(Camera.from_focal(*size_wh, focal_px))
    except (DatasetError, GeometryError) as error:
        raise invalid(str(error)) from None
    return PhotoFile(name, data, T_world_cam, camera, options.sequence or sequence_of(name))


async def _add(service: Service, served: ServedMap, photo: PhotoFile) -> Response:
    def encode(known: MapFrame | None, settings: MapSettings) -> list[EncodedPhotos]:
        return service.answering.on_network(
            lambda localizer: list(encode_photos([(photo, known)], fold_match_gnn(localizer.network.model), settings))
        )

    added = await served.add(photo, encode)
    if added.wrong is not None:
        raise ServiceError(409, "conflict", added.wrong) if added.was_there else bad_image(added.wrong)
    if added.frame is None:
        raise not_found()
    return _json(frame_message(added.frame), 200 if added.was_there else 201)


# Errors and schemas


def _json(message: messages.Message, status: int = 200) -> Response:
    return Response(message.model_dump_json(), status, media_type=JSON)


async def _on_error(_: Request, error: Exception) -> Response:
    if not isinstance(error, ServiceError):
        raise error  # a bug: nothing of ours reaches a client unless it was meant for one
    return error_response(error)


async def _on_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return error_response(not_found())
    code = {405: "method_not_allowed"}.get(error.status_code, "http_error")
    message = f"Expected another kind of request, found one that is not taken here ({error.detail}). See /docs."
    return error_response(ServiceError(error.status_code, code, message, error.headers))


async def _on_bad_parameters(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return error_response(invalid(f"{first['loc'][-1]}: {first['msg']}. Correct this parameter; see /docs."))


_WHEN = {
    401: "No valid key.",
    403: "The key has not the scope, the service changes no maps, or the request comes from another web page.",
    404: "No such map or photo.",
    408: "The body came in too slowly.",
    409: "The map has another photo of that name.",
    413: "The body or the photo is too large.",
    415: "The body or the photo is of another type.",
    421: "Host names another host.",
    422: "Wrong fields, or a photo that cannot be read.",
    429: "Too many queries; Retry-After says when to come again.",
    431: "The lines before the body are too long.",
    503: "The map cannot be read just now.",
}


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": messages.Error, "description": _WHEN[status]} for status in statuses}


def _body(form: type[messages.Message], json: type[messages.Message] | None = None) -> dict[str, Any]:
    """A request's body for the schema: bodies are read by hand, within limits."""
    content = {FORM: form} if json is None else {FORM: form, JSON: json}
    return {
        "requestBody": {
            "required": True,
            "content": {
                kind: {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}} for kind, model in content.items()
            },
        }
    }


def _openapi(app: FastAPI) -> dict[str, Any]:
    """The schema, with the messages that are read by hand."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        bodies: list[tuple[Any, Any]] = [
            (model, "validation") for model in (messages.LocalizeForm, LocalizeJson, messages.FrameForm)
        ]
        _, definitions = models_json_schema(bodies, ref_template="#/components/schemas/{model}")
        schema["components"]["schemas"] |= definitions["$defs"]
        app.openapi_schema = schema
    return app.openapi_schema
