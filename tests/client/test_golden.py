# SPDX-License-Identifier: Apache-2.0
"""What programs and people build on, against golden.txt: the keys and types in the JSON of caidctl's verbs, the
heads of its tables, and what Python tells of each record. `./dev golden` writes that file anew: the difference is
what CHANGELOG.md has to list. The exported symbols are caid.syms, which test_symbols holds."""

import inspect
import json
import os
import pathlib
import re
import signal
import subprocess
import textwrap

import caid
from cli import CAIDCTL, Client, caidctl, read_json, run_daemon, wait_until
from slots import give_up, named

GOLDEN = pathlib.Path(__file__).with_name("golden.txt")

# In this order: the last ones change what the others tell.
VERBS = ["status", "list", "list --all --long", "list --lost", "show", "show a", "show --pool=OWN", "show --unnamed",
         "show --tickets", "map", "pools", "users", "connections", "info", "timelines", "channels", "ping", "version", "flush",
         "withdraw --gone", "unlink b", "drain --undo", "drain --force"]
NO_TABLE = {"map", "ping", "version", "flush", "withdraw --gone", "unlink b", "drain --undo", "drain --force"}

# What tells the records: their methods of Client.
METHODS = ["channels", "connections", "devices", "flush", "list", "lost", "memory_info", "metrics", "pools", "show", "status", "tickets", "timelines",
           "unnamed", "users"]


def paths(value, path=""):
    """Each key, with the type of its value."""
    if isinstance(value, dict):
        for key, of in value.items():
            yield from paths(of, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list):
        yield from [p for of in value for p in paths(of, path + "[]")] or [(path, "[]")]
    else:
        yield path, "null" if value is None else type(value).__name__


def json_of(value):
    """A paragraph for each object: its keys, and their types."""
    objects = {}
    for path, of in paths(value):
        of_object, _, key = path.rpartition(".")
        objects.setdefault(of_object, {}).setdefault(key, set()).add(of)
    for path in sorted(objects):
        keys = ", ".join(f"{key} {'|'.join(sorted(of))}" for key, of in sorted(objects[path].items()))
        yield from textwrap.wrap(f"{path or '.'}: {keys}", 116, subsequent_indent="    ")


def table_of(text):
    """The heads of tables, and the names of facts."""
    lines = text.splitlines()
    heads = [line for line in lines if re.fullmatch(r" *[A-Z][A-Z ]+", line)]
    return ["TABLE " + ", ".join(re.split(r" {2,}", head.strip())) for head in heads] or [
        "FACTS " + ", ".join(dict.fromkeys(re.split(r" {2,}", line.strip())[0] for line in lines))]


def monitored(socket):
    """One message of `caidctl monitor --json`."""
    with subprocess.Popen([CAIDCTL, f"--socket={socket}", "monitor", "--json"], stdout=subprocess.PIPE) as process:
        wait_until(lambda: read_json(socket, "status")["watches"] == 1)
        caidctl("ping", "-c1", socket=socket)
        message = next(m for m in map(json.loads, process.stdout) if m.get("method") == "ping")
        process.kill()
    return {**message, "body": {}}


def verbs(tmp_path):
    config = tmp_path / "conf"
    config.write_text("[user-pools]\nlegacy = yes\n")
    with run_daemon(tmp_path / "s", config, mode="--supervise"):
        socket = tmp_path / "s"
        loses, pid = Client(socket), read_json(socket, "status")["pid"]
        loses.create("lost", (4,), memory="legacy")
        loses.close()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: read_json(socket, "status")["pid"] != pid)
        client = Client(socket)
        client.create("b", (4,))
        client.create(None, (4,))
        client.create("a", (2, 3), "|V4", (16, 4), '[["x", "<f4"]]', metadata="{}")
        client.send_array()
        timeline = named(client, "t")
        for verb in VERBS:
            words = verb.replace("OWN", f"uid:{os.getuid()}").split()
            yield f"caidctl {verb}", [
                *json_of(json.loads(caidctl("--json", *words, socket=socket).stdout)),
                *([] if verb in NO_TABLE else table_of(caidctl(*words, socket=socket).stdout))]
        yield "caidctl monitor", json_of(monitored(socket))
        give_up(client, timeline)
        client.close()


def fields(cls):
    """As the source has them: with types, and a comment for what a field is."""
    sources = "".join(source.read_text("utf-8") for source in pathlib.Path(caid.__file__).parent.rglob("_*.py"))
    (source,) = re.findall(rf"^class {cls.__name__}\(NamedTuple\):\n(.*?)(?=^\S|\Z)", sources, re.M | re.S)
    comment = ""
    for line in source.replace(cls.__doc__, "").splitlines():
        above = re.fullmatch(r"    #: (.*)", line)
        field = re.fullmatch(r"    (\w+: [^#]*?)(?:  #: (.*))?", line)
        if above:
            comment += above[1] + " "
        elif field and field[1].split(":")[0] in cls._fields:
            yield f"{field[1]}  {comment + (field[2] or '')}".rstrip()
            comment = ""


def python():
    for name in sorted(caid._base._records.__all__):
        cls = getattr(caid, name)
        if hasattr(cls, "_fields"):
            yield f"caid.{name}{cls._fields}", inspect.getdoc(cls).splitlines() + [*fields(cls)]
    for name in METHODS:
        method = inspect.getattr_static(caid.Client, name)
        function = getattr(method, "fget", method)
        yield f"caid.Client.{name}{inspect.signature(function)}", inspect.getdoc(function).splitlines()[:1]


def test_golden(tmp_path):
    parts = [*verbs(tmp_path), *python()]
    text = "\n".join(f"{title}\n" + "".join(f"    {line}\n" for line in lines) for title, lines in parts)
    if os.environ.get("CAID_GOLDEN") == "renew":
        GOLDEN.write_text(text, "utf-8")
    assert text == GOLDEN.read_text("utf-8"), "./dev golden writes it anew"
