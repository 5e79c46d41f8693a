"""Reference pages are those of the tables and structs, and name symbols of the system model."""

import pytest
from support import ROOT

from collapipe_jax.runs import documents
from experiments import reference

PAGES = {
    "configuration.md": reference.configuration_page,
    "documents.md": reference.documents_page,
}


@pytest.mark.parametrize("name", PAGES)
def test_the_page_on_file_is_up_to_date(name, tmp_path):
    page = PAGES[name]()
    on_file = (ROOT / "docs/reference" / name).read_text(encoding="utf-8")
    assert on_file == page, "run python -m experiments.reference docs/reference"
    reference.main([str(tmp_path / "reference")])
    assert (tmp_path / "reference" / name).read_text(encoding="utf-8") == page


@pytest.mark.parametrize("section", ["sizes", *documents.NETWORK, "decision"])
def test_symbols_are_those_of_the_system_model(section):
    model = (ROOT / "docs/system-model.md").read_text(encoding="utf-8")
    others = {"sizes": documents.SIZES, "decision": documents.DECISION}
    for name, quantity in (documents.NETWORK | others)[section].items():
        assert quantity.symbol, name
        assert quantity.symbol in model, name
