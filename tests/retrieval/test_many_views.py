"""Descriptors that are drawn to be like those of rendered views, and what retrieval is measured with them."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize
from typer.testing import CliRunner

from relograph.cli.app import app
from relograph.errors import ConfigError, DatasetError
from relograph.retrieval import ExactIndex, StoredIndex, benchmark, many_views
from relograph.retrieval.benchmark import RetrievalSpeed, draw_growth, retrieval_speed, retrieval_table
from relograph.retrieval.many_views import (
    DescribedViews,
    describe_pixels,
    describe_views,
    drawn_like,
    likeness,
)
from relograph.rooms.room_maps import RoomMap, RoomMapConfig

DIM, HOMES, PER_HOME = 12, 40, 15


@pytest.fixture(scope="module")
def views() -> DescribedViews:
    """Homes apart from each other, their views near each other, and more of both along some axes."""
    generator = torch.Generator().manual_seed(0)
    scale = torch.linspace(2.0, 0.2, DIM)
    centre = scale * torch.randn(HOMES, 1, DIM, generator=generator)
    around = centre + 0.2 * scale * torch.randn(HOMES, PER_HOME + 1, DIM, generator=generator)
    around[..., 0] += 3.0
    around = normalize(around, dim=-1)
    return DescribedViews(
        around[:, 1:].flatten(0, 1), torch.arange(HOMES).repeat_interleave(PER_HOME), around[:, 0], "nobody"
    )


def drawn_block(views: DescribedViews, number: int) -> torch.Tensor:
    return list(drawn_like(views, (number + 1) * len(views.map)))[number]


def test_the_first_rows_are_the_rendered_views_themselves(views: DescribedViews):
    assert torch.equal(drawn_block(views, 0), views.map)
    assert sum(len(block) for block in drawn_like(views, 1501)) == 1501


def test_drawn_homes_keep_every_distance_between_their_views_and_the_length_of_descriptors(views: DescribedViews):
    drawn = drawn_block(views, 1).unflatten(0, (HOMES, PER_HOME))
    rendered = views.map.unflatten(0, (HOMES, PER_HOME))
    torch.testing.assert_close(drawn @ drawn.mT, rendered @ rendered.mT)
    assert not torch.allclose(drawn, rendered, atol=0.1)


def test_drawn_homes_are_elsewhere_than_their_originals_and_than_each_other(views: DescribedViews):
    queries = views.queries
    own = ExactIndex(views.map).search(queries, 1).similarity
    for block in (1, 2):
        others = ExactIndex(drawn_block(views, block)).search(queries, 1).similarity
        assert (own > others).float().mean() > 0.9


def test_drawn_views_have_the_spectrum_of_the_rendered_ones(views: DescribedViews):
    drawn = torch.cat(list(drawn_like(views, 20 * len(views.map)))[1:])
    moments = [torch.linalg.eigvalsh(some.T @ some / len(some)) for some in (views.map, drawn)]
    torch.testing.assert_close(moments[1], moments[0], rtol=0.1, atol=1e-3)
    figures = likeness(views)
    for name, value in figures["rendered"].items():
        assert figures["drawn"][name] == pytest.approx(value, rel=0.15), name


def test_the_same_seed_draws_the_same(views: DescribedViews):
    first, again, other = (list(drawn_like(views, 1200, seed=seed))[1] for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    with pytest.raises(ConfigError, match="at least 1"):
        next(drawn_like(views, 0))


def test_descriptors_of_views_come_back_from_a_file(views: DescribedViews, tmp_path: Path):
    path = tmp_path / "views.safetensors"
    views.save(path)
    again = DescribedViews.load(path)
    assert torch.equal(again.map, views.map)
    assert torch.equal(again.queries, views.queries)
    assert again.described_by == "nobody"
    path.write_bytes(b"something else")
    with pytest.raises(DatasetError, match="expected descriptors of rendered views"):
        DescribedViews.load(path)


def made_home(number: int) -> RoomMap:
    home, generator = object.__new__(RoomMap), torch.Generator().manual_seed(number)
    images = torch.randint(0, 256, (7, 32, 32, 3), dtype=torch.uint8, generator=generator)
    object.__setattr__(home, "images", images)
    object.__setattr__(home, "is_query", torch.arange(7) >= 4)
    return home


def test_rendered_views_are_described_home_by_home(monkeypatch: pytest.MonkeyPatch):
    asked = []

    def two_homes(part: str, config: object, **options: object) -> list[RoomMap]:
        asked.append((part, config))
        return [made_home(number) for number in range(2)]

    monkeypatch.setattr(many_views, "room_maps", two_homes)
    monkeypatch.setattr(many_views, "VIEWS_PER_HOME", 4)
    views = describe_views("validation", describe_pixels, "pixels", num_views=7, num_queries=5)
    ((part, config),) = asked
    assert (part, config.num_homes, config.map_views, config.query_views) == ("validation", 2, 4, 3)
    assert views.home.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert (views.map.shape, views.queries.shape) == ((7, 256), (6, 256))
    torch.testing.assert_close(views.map.norm(dim=1), torch.ones(7))


def test_views_that_were_kept_when_a_run_was_cut_are_not_rendered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rendered: list[int] = []
    lasts = 2

    def some_homes(part: str, config: RoomMapConfig, *, first_home: int, **options: object) -> Iterator[RoomMap]:
        for number in range(first_home, config.num_homes):
            if len(rendered) == lasts:
                raise KeyboardInterrupt
            rendered.append(number)
            yield made_home(number)

    def described(**options: object) -> DescribedViews:
        return describe_views("validation", describe_pixels, "pixels", num_views=12, num_queries=9, **options)

    monkeypatch.setattr(many_views, "room_maps", some_homes)
    monkeypatch.setattr(many_views, "VIEWS_PER_HOME", 4)
    with pytest.raises(KeyboardInterrupt):
        described(parts=tmp_path)
    lasts = 9
    views = described(parts=tmp_path)
    assert rendered == [0, 1, 2]
    assert torch.equal(described(parts=tmp_path).map, views.map)
    assert rendered == [0, 1, 2]
    assert torch.equal(described().map, views.map)  # what was never cut
    described(parts=tmp_path, seed=1)
    assert rendered == [0, 1, 2, 0, 1, 2, 0, 1, 2]


def test_pixels_describe_an_image_whatever_its_brightness():
    image = torch.randint(0, 100, (1, 32, 48, 3), dtype=torch.uint8)
    torch.testing.assert_close(describe_pixels(image), describe_pixels(image + 50))


def test_a_row_of_the_benchmark_tells_of_an_index_that_finds_all(
    views: DescribedViews, monkeypatch: pytest.MonkeyPatch
):
    # In this process: three more would take longer to start than to work.
    monkeypatch.setattr(benchmark, "in_a_process", lambda work, *arguments: work(*arguments))
    row = retrieval_speed(views, 2000)
    assert (row.images, row.dim, row.graph_images) == (2000, DIM, 0)
    assert row.recall_at_10 > 0.98  # half precision may exchange two that are equally near
    assert row.disk_mb == pytest.approx(2000 * (2 * DIM + 4 + 8) / 1e6, rel=0.02)
    assert "| 2,000 |" in retrieval_table([asdict(row)])


def test_an_index_that_was_kept_is_measured_again_and_not_built_again(
    views: DescribedViews, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    done: list[str] = []

    def here(work: Callable[..., object], *arguments: object) -> object:
        done.append(work.__name__)
        return work(*arguments)

    monkeypatch.setattr(benchmark, "in_a_process", here)
    first, again = retrieval_speed(views, 900, parts=tmp_path), retrieval_speed(views, 900, parts=tmp_path)
    assert done == ["_find_truth", "_build", "_search", "_search_exactly", "_add", "_search", "_search_exactly", "_add"]
    assert (first.build_is_kept, again.build_is_kept) == (False, True)
    assert again.build_s == first.build_s
    assert again.recall_at_10 == first.recall_at_10
    (index,) = tmp_path.glob("900-*/index")
    assert StoredIndex(index).num_rows == 900  # those that were added for the clock are gone
    retrieval_speed(views, 900, parts=tmp_path, seed=1)
    assert len(list(tmp_path.iterdir())) == 2


def test_recall_counts_true_neighbours_that_were_found_in_any_order():
    truth, found = torch.tensor([[1, 2], [3, -1]]), torch.tensor([[2, 9], [3, -1]])
    assert benchmark._recall(found, truth) == pytest.approx(2 / 3)


def test_the_command_writes_figures_that_say_who_described_the_views(
    views: DescribedViews, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(benchmark, "in_a_process", lambda work, *arguments: work(*arguments))
    views.save(tmp_path / "views.safetensors")
    arguments = ["bench", "retrieval", "--images", "500", "--images", "1000"]
    paths = [tmp_path / "growth.json", tmp_path / "growth.png"]
    arguments += [
        "--descriptors",
        str(tmp_path / "views.safetensors"),
        "--output",
        str(paths[0]),
        "--plot",
        str(paths[1]),
    ]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "600 rendered views, described by nobody; the others are drawn." in done.output
    document = json.loads(paths[0].read_text())
    assert document["metadata"]["described_by"] == "nobody"
    assert set(document["metadata"]["likeness"]) == {"rendered", "drawn"}
    assert [row["images"] for row in document["results"]] == [500, 1000]
    assert paths[1].read_bytes().startswith(b"\x89PNG")


def test_a_plot_is_drawn_of_rows_as_a_results_file_gives_them(tmp_path: Path):
    fields = dict.fromkeys(RetrievalSpeed.__dataclass_fields__, 1.0)
    draw_growth([{**fields, "images": 10}, {**fields, "images": 100}], tmp_path / "folder" / "plot.png")
    assert (tmp_path / "folder" / "plot.png").stat().st_size > 1000
