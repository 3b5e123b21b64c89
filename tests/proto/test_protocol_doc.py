# SPDX-License-Identifier: Apache-2.0
"""docs/PROTOCOL.md against messages.def, errors.def, proto_limits.h and the real encoder. `./dev golden` writes
the tables that messages.def documents."""
import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["CAID_BUILD_DIR"])
PAGE = ROOT / "docs/PROTOCOL.md"
TABLE = re.compile(r"^\*\*`(\w+)`\*\*\n\n((?:\|.*\n)+)", re.M)
DOC = PAGE.read_text("utf-8")
PRINTED = dict(TABLE.findall(subprocess.run([BUILD / "bin/caid-describe", "protocol"], stdout=subprocess.PIPE, text=True,
                                            check=True, timeout=60).stdout))
if os.environ.get("CAID_GOLDEN") == "renew":
    DOC = TABLE.sub(lambda m: f"**`{m[1]}`**\n\n{PRINTED.get(m[1], m[2])}", DOC)
    PAGE.write_text(DOC, "utf-8")

TYPES = {"BOOL": "bool", "U64": "u64", "I64": "i64", "STR": "str",
         "I64S": "[i64]", "U64S": "[u64]", "STRS": "[str]"}
PRESENCE = {"REQ": "required", "OPT": "optional", "ALL": "optional"}


# ---- what the tables of the tree say ----

def calls(text, macro):
    """The arguments of every MACRO(...) that starts a line."""
    found = re.findall(rf"^{macro}\((.*?)\)\s*(?:/\*.*)?$", text, re.M)
    return [[argument.strip() for argument in arguments.split(",")] for arguments in found]


def read_messages():
    """({record: [(field, type, presence)]}, {method: (kind, params, result)})"""
    text = "".join((ROOT / "proto" / name).read_text("utf-8") for name in ("answers.def", "messages.def"))
    text = re.sub(r"^#.*\n", "", text, flags=re.M)
    text = re.sub(r"^FIGURE\((\w+)", r"FIELD(\1, U64", text, flags=re.M)
    records = {name: [] for name in re.findall(r"^(?:RECORD|ANSWER|RESULT)\((\w+)", text, re.M)}
    lines = re.findall(r"^(FIELD|SECRET|NESTED|ONE|WIRE)\((\w+), (\w+), (\w+)(?:, (REQ|OPT|ALL))?", text, re.M)
    for macro, record, second, third, *presence in lines:
        if macro not in ("NESTED", "ONE", "WIRE"):
            records[record].append((third, TYPES[second], PRESENCE[presence[0]]))
        else:
            records[record].append((third, f"[{second}]", "optional"))
    methods = {name: ("request", params, result)
               for _, name, params, result in calls(text, "REQUEST")}
    methods.update({name: ("notification", params, None)
                    for _, name, params in calls(text, "NOTIFY")})
    return records, methods


def read_errors():
    text = (ROOT / "proto/errors.def").read_text("utf-8")
    found = re.findall(r'^ERROR\((\w+), (\d+), (\w+), "([^"]*)"\)', text, re.M)
    assert len(found) == len(re.findall(r"^ERROR\(", text, re.M))
    return [(number, name, errno, text) for name, number, errno, text in found]


def read_limits():
    text = (ROOT / "proto/proto_limits.h").read_text("utf-8")
    return re.findall(r"^#define (\w+)\s+(\d+)", text, re.M)


RECORDS, METHODS = read_messages()


# ---- what the page says ----

def section(title):
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", DOC, re.M | re.S)
    assert found, f"no section {title!r}"
    return found[1]


def rows(text):
    """The cells of the first table in text, without its head; a cell's backquotes are taken off."""
    table = re.search(r"(?:^\|.*\|\n)+", text, re.M)[0].splitlines()
    assert set(table[1]) <= set("| -"), table[1]
    return [[cell.strip().replace("`", "") for cell in line.strip("|").split(" | ")]
            for line in table[2:]]


def record_tables():
    return dict(TABLE.findall(DOC))


def method_sections():
    """{method: (kind, text)}"""
    text = section("Messages")
    found = re.findall(r"^### `(\w+)`: (\w+)\n(.*?)(?=^#|\Z)", text, re.M | re.S)
    assert len(found) == len({name for name, _, _ in found}) == len(re.findall(r"^### ", text, re.M))
    return {name: (kind, text) for name, kind, text in found}


def stated(text, what):
    """The names that 'Params: `a`, `b` (why).' gives, or None for 'none' and where it is missing."""
    found = re.search(rf"{what}: (.*?)\.(?:\s|$)", text, re.S)
    return re.findall(r"`(\w+)`", found[1]) if found else None


# ---- both say the same ----

def test_the_page_has_every_record_once():
    headings = re.findall(r"^\*\*`(\w+)`\*\*", DOC, re.M)
    assert sorted(headings) == sorted(RECORDS)


@pytest.mark.parametrize("record", RECORDS)
def test_fields(record):
    tables = record_tables()
    if not RECORDS[record]:
        assert record not in tables
        return
    found = rows(tables[record])
    assert [tuple(cells[:3]) for cells in found] == RECORDS[record]
    assert all(len(cells) == 4 and cells[3] for cells in found), "a field without a meaning"


@pytest.mark.parametrize("record", PRINTED)
def test_tables_that_are_printed(record):
    assert record_tables()[record] == PRINTED[record], "./dev golden writes it anew"


def test_the_page_has_every_method_once():
    assert sorted(method_sections()) == sorted(METHODS)


@pytest.mark.parametrize("method", METHODS)
def test_methods(method):
    kind, params, result = METHODS[method]
    stated_kind, text = method_sections()[method]
    assert stated_kind == kind
    assert stated(text, "Params") == [params]
    assert stated(text, "Result") == ([result] if result else None)


@pytest.mark.parametrize("method", METHODS)
def test_errors_that_a_method_names_exist(method):
    daemons = {name for number, name, _, _ in read_errors() if int(number) < 64}
    assert set(stated(method_sections()[method][1], "Errors")) <= daemons


@pytest.mark.parametrize("method", METHODS)
def test_a_method_says_what_fds_it_brings(method):
    _, text = method_sections()[method]
    result = METHODS[method][2]
    brings = [name for name, kind, _ in RECORDS.get(result, []) if kind in ("[block]", "[page]")]
    assert stated(text, "Fds") == brings


def test_errors():
    found = rows(section("Errors"))
    assert [tuple(cells[:4]) for cells in found] == read_errors()
    assert all(len(cells) == 5 and cells[4] for cells in found), "an error without a meaning"


def test_limits():
    found = rows(section("Limits"))
    assert [(cells[0], cells[1].replace(",", "")) for cells in found] == read_limits()
    assert all(len(cells) == 3 and cells[2] for cells in found), "a limit without a meaning"


def test_version_in_the_title():
    limits = dict(read_limits())
    assert DOC.startswith(f"# The caid protocol, version {limits['PROTO_VERSION_MAX']}\n")


def test_worked_example():
    """The bytes are the encoder's, in its order."""
    out = subprocess.run([BUILD / "tests/protocol_examples"], capture_output=True, text=True, check=True, timeout=60).stdout
    made = [tuple(packet.split("\n", 1)) for packet in out.strip().split("\n\n")]
    text = section("A worked example")
    found = re.findall(r"^(\w+: [^\n]*):\n\n```text\n(.*?)\n```", text, re.M | re.S)
    assert [(title[0].lower() + title[1:], dump) for title, dump in found] == made
