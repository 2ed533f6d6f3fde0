"""What the service says of itself: the file in the documents, the page at /docs, the files of the pages."""

import runpy
from pathlib import Path
from typing import Any

from serving.running_services import Running, error_of

REPOSITORY = Path(__file__).parents[2]


def test_the_committed_openapi_file_is_what_the_service_says():
    written_anew = runpy.run_path(str(REPOSITORY / "docs" / "write_openapi.py"))["written_anew"]
    committed = (REPOSITORY / "docs" / "openapi.json").read_text(encoding="utf-8")
    assert committed == written_anew(), "run: make openapi"


def test_every_address_has_its_errors_in_one_form_and_every_message_is_explained(asked: Running):
    api = asked.client.get("/openapi.json").json()
    for path, methods in api["paths"].items():
        for method, about in methods.items():
            assert about["description"].endswith("."), path
            for status, answer in about["responses"].items():
                if status.startswith("4"):
                    schema = answer["content"]["application/json"]["schema"]
                    assert schema == {"$ref": "#/components/schemas/Error"}, (path, method, status)
    assert all(schema["description"].endswith(".") for schema in api["components"]["schemas"].values())


def test_the_page_of_addresses_shows_them_all_and_asks_nobody_else(asked: Running, browser: Any):
    page = browser.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: complaints.append(request.url))
    page.goto(f"{asked.url}/docs#LocalizeAnswer")
    page.wait_for_selector("#LocalizeAnswer")
    api = asked.client.get("/openapi.json").json()
    addresses = [path for path, methods in api["paths"].items() for _ in methods]
    assert sorted(page.locator("#operations summary code").filter(has_text="/").all_inner_texts()) == sorted(addresses)
    assert page.locator("#LocalizeAnswer").get_by_text("T_world_cam", exact=True).is_visible()
    page.locator("summary", has_text="/localize").click()
    page.locator("#operations a", has_text="LocalizeForm").click()
    page.locator("#LocalizeForm").get_by_text("num_references", exact=True).wait_for()  # opened by an event, later
    page.close()
    assert [text for text in complaints if not text.startswith(asked.url)] == []


def test_files_of_the_page_have_their_types_and_are_not_sent_twice(asked: Running):
    for path, kind in (("/", "text/html"), ("/page/page.js", "text/javascript"), ("/page/page.css", "text/css")):
        response = asked.client.get(path)
        assert response.headers["content-type"].startswith(kind)
        again = asked.client.get(path, headers={"If-None-Match": response.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    assert error_of(asked.client.get("/page/none.js"), 404)[0] == "not_found"
