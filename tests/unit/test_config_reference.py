"""The configuration's page is generated, complete and up to date."""

from __future__ import annotations

from pathlib import Path

from headrace.config.config import Config
from headrace.config.reference import reference
from headrace.config.schema import fields, known_keys

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == reference(), "run `make docs`"


def test_every_key_is_on_the_page_and_has_a_sentence() -> None:
    page = reference()

    assert [key for key in known_keys(Config) if f"`{key}`" not in page] == []
    described = {key for key, field in fields(Config) if field.description}
    assert [k for k in known_keys(Config) if k not in described and not k.endswith(".kind")] == []
