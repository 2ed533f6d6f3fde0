"""Writes docs/openapi.json, what the service answers, as the service itself says it.

Run: python docs/write_openapi.py
"""

import json
from pathlib import Path

from relograph.serving.app import create_app
from relograph.serving.config import ServeConfig
from relograph.serving.service import Service

FILE = Path(__file__).with_name("openapi.json")


def written_anew() -> str:
    """The text of the file as it should be."""
    app = create_app(Service(ServeConfig(maps=("kitchen",))))  # it is never started, so there need be no such map
    return json.dumps(app.openapi(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(written_anew(), encoding="utf-8")
