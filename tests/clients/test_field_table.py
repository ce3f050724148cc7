"""docs/openai-api.md says what becomes of every field of the installed openai client."""

import re

import pytest

from ferrite.api.fields import Support
from tests.clients.field_table import DOCUMENT, OBJECTS, ROUTES, Route, client_fields, rewritten, tables


def rows(table: str) -> dict[str, str]:
    return {line.split("|")[1].split("`")[1]: line for line in table.splitlines()[2:]}


@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
def test_every_field_of_the_client_is_decided(route: Route) -> None:
    assert client_fields(route.params) <= set(route.table) == set(route.body.__struct_fields__)


def test_the_tables_have_every_field_of_the_client() -> None:
    for name, table in tables().items():
        if name != "objects":
            assert set(rows(table)) >= client_fields(ROUTES[name].params)
    assert len(tables()["objects"].splitlines()) == 2 + len(OBJECTS)


def test_the_document_has_the_tables_of_now() -> None:
    written = DOCUMENT.read_text()
    assert written == rewritten(written), "python -m tests.clients.field_table writes them anew"


def test_a_row_says_what_the_server_does() -> None:
    chat = rows(tables()["chat"])
    assert chat["temperature"] == "| `temperature` | honoured | 0 to 2 |"
    assert chat["top_k"].startswith("| `top_k` (ours) | honoured")
    assert chat["user"] == "| `user` | accepted, without effect |  |"
    assert chat["store"] == "| `store` | refused (400), all but `null`, `false` |  |"
    assert "| part `image_url` |  | all |" in tables()["objects"]


def test_a_field_that_the_client_adds_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Later:
        brand_new: int

    route = ROUTES["chat"]
    grown = Route(route.path, (*route.params, Later), route.body, route.table)
    monkeypatch.setitem(ROUTES, "chat", grown)
    assert "| `brand_new` | unknown: refused (400) | |" in tables()["chat"]
    written = DOCUMENT.read_text()
    assert written != rewritten(written)


def test_what_is_not_honoured_is_not_called_so() -> None:
    for name, route in ROUTES.items():
        table = rows(tables()[name])
        for field, rule in route.table.items():
            if field in table:
                assert ("honoured" in table[field]) is (rule.support is Support.HONOURED)


def test_a_document_with_other_tables_is_refused() -> None:
    document = DOCUMENT.read_text()
    with pytest.raises(ValueError, match="the document has the tables"):
        rewritten(re.sub("<!-- table: chat -->", "", document))
