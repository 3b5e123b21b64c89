# SPDX-License-Identifier: Apache-2.0
"""``caidctl load``, ``save``, ``get`` and ``put``, which become this program."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys

import caid

from ._interfaces import _npy
from .weights import _progress, COLUMNS, FormatError, ROWS, load, open, save

_OK, _LOCAL, _REFUSED = 0, 1, 2  # exit statuses, as caidctl's
_OF_CLIENT = 64  # codes from here on are libcaid's, not the daemon's


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(_LOCAL, f"{self.prog}: {message}\nTry '{self.prog} --help'.\n")


def _parser():
    parser = _Parser(prog="caidctl", allow_abbrev=False)
    verbs = parser.add_subparsers(dest="verb", required=True)
    to_load = verbs.add_parser("load", help="put a model's weights under a name", allow_abbrev=False)
    to_load.add_argument("model", nargs="+", help="safetensors file, folder or index")
    to_load.add_argument("--name", "-n", required=True, help="of the model")
    to_load.add_argument("--device", "-d", default="0", help="index, UUID, PCI address, \"own\"")
    to_load.add_argument("--memory", choices=("device", "pinned"), default="device", help="pinned: the host's")
    to_load.add_argument("--droppable", action="store_true", help="may make room for others, and is loaded again")
    to_load.add_argument("--priority", type=int, default=0, metavar="N", help="those with a lower one are dropped first")
    to_load.add_argument("--dtype", help="what floating-point tensors become: bfloat16, <f2, ...")
    to_load.add_argument("--only", action="append", metavar="PATTERN", help="tensors to load")
    to_load.add_argument("--shard", metavar="RANK/WORLD", help="a part of each tensor")
    to_load.add_argument("--rows", action="append", metavar="PATTERN", help="divided by rows")
    to_load.add_argument("--columns", action="append", metavar="PATTERN", help="divided by columns")
    to_load.add_argument("--tie", action="append", metavar="NEW=OLD", help="a further name")
    to_save = verbs.add_parser("save", help="write a model to a safetensors file", allow_abbrev=False)
    to_save.add_argument("name", help="of the model")
    to_save.add_argument("file")
    to_get = verbs.add_parser("get", help="write an array to a .npy file", allow_abbrev=False)
    to_put = verbs.add_parser("put", help="put what a .npy file holds under a name", allow_abbrev=False)
    for verb, stream in (to_get, "output"), (to_put, "input"):
        verb.add_argument("name", help="of the array")
        verb.add_argument("file", nargs="?", help=f"standard {stream} without it")
    to_put.add_argument("--device", "-d", default="0", help="index, UUID, PCI address, \"own\"")
    to_put.add_argument("--dtype", help="what the elements become: bfloat16, <f2, ...")
    for verb in to_load, to_save, to_get, to_put:
        verb.add_argument("--pool", "-p", help="instead of your own")
        verb.add_argument("--socket", "-s", metavar="PATH", help="the daemon's")
        verb.add_argument("--json", "-j", action="store_true", help="for programs")
    for verb in to_load, to_save:
        verb.add_argument("--quiet", "-q", action="store_true", help="no progress")
    return parser


def _shard(parser, args):
    if args.shard is None:
        if args.rows or args.columns:
            parser.error("--rows and --columns go with --shard")
        return None
    rank, slash, world = args.shard.partition("/")
    if not (slash and rank.isdecimal() and world.isdecimal()):
        parser.error(f"--shard {args.shard}: RANK/WORLD, as 0/4")
    return int(rank), int(world), args.rows or ROWS, args.columns or COLUMNS


class _Interrupts:
    """Ctrl-C ends a load or save while that can be undone. Later, the first Ctrl-C changes nothing."""

    def __init__(self):
        self._is_late = self._was_told = False

    def __call__(self, *_):
        if self._is_late and not self._was_told:
            self._was_told = True
            return
        raise KeyboardInterrupt(*["the last step had begun, and may be done"] * self._is_late)

    def until_all_is_done(self, show):
        """A progress function: from its last call on, Ctrl-C is too late."""

        def tell(done, total):
            show(done, total)
            if done >= total:
                self.are_late()

        return tell

    def are_late(self):
        """From now on nothing can be undone."""
        self._is_late = True


def _shown(args, interrupts, what):
    show = _progress.none if args.quiet else _progress.shown(what)
    return interrupts.until_all_is_done(show)


def _device(args):
    return int(args.device) if args.device.isdecimal() else args.device


def _load(parser, args, client, interrupts):
    tie = dict(pair.partition("=")[::2] for pair in args.tie) if args.tie else None
    version = load(
        args.model,
        args.name,
        pool=args.pool,
        device=_device(args),
        memory=args.memory,
        dtype=args.dtype,
        only=args.only,
        shard=_shard(parser, args),
        tie=tie,
        keep="droppable" if args.droppable else "always",
        priority=args.priority,
        progress=_shown(args, interrupts, f"loading {args.name.rstrip('/')}"),
        client=client,
    )
    with open(args.name, pool=args.pool, client=client) as weights:
        result = {"name": weights.name, "version": version, "arrays": len(weights), "nbytes": weights.nbytes}
    return result, "{name}@{version}: {arrays} arrays, {nbytes} bytes"


def _save(_parser, args, client, interrupts):
    with open(args.name, pool=args.pool, client=client) as weights:
        save(weights, args.file, progress=_shown(args, interrupts, f"saving {weights.name}"))
        result = {"name": weights.name, "version": weights.version, "file": args.file}
    return result, "{name}@{version}: {file}"


def _get(parser, args, client, _interrupts):
    if args.file is None and sys.stdout.isatty():
        parser.error("get: standard output is a terminal: name a file")
    with client.open(args.name, pool=args.pool) as array:
        if array._memory.members:
            raise ValueError(f"{args.name!r} is a set, of which each array has a name; caidctl save takes all")
        with array.read() as view:
            _npy.write(view, args.file)
        return _told(array, array.generation, args)


def _put(_parser, args, client, interrupts):
    data = _npy.read(args.file)
    with client.array(data, args.dtype, pool=args.pool, device=_device(args)) as array:
        interrupts.are_late()
        return _told(array, array.publish(args.name), args)


def _told(array, generation, args):
    typestr = array._layout.element.type_name
    result = {"name": args.name, "generation": generation, "typestr": typestr, "shape": list(array.shape), "file": args.file}
    return result, "{name}@{generation}: {typestr} {shape}"


def _beside(args):
    """Standard output, unless that is what is written to."""
    if args.verb not in ("save", "get"):
        return sys.stdout
    is_written_to = args.file is None or os.path.samestat(os.stat(args.file), os.fstat(1))
    return sys.stderr if is_written_to else sys.stdout


_VERBS = {"load": _load, "save": _save, "get": _get, "put": _put}


def _open_standard_streams():
    """Opens the standard streams that are closed, so that no file gets one of their numbers."""
    for name in "stdin", "stdout", "stderr":
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "w"))


def main(argv: list[str] | None = None) -> int:
    parser = _parser()
    _open_standard_streams()
    args = parser.parse_args(argv)
    try:
        return _run(parser, args)
    finally:
        _drop_what_stderr_does_not_take()


def _drop_what_stderr_does_not_take():
    """Python would try once more when it ends, and exit with 120."""
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _run(parser, args):
    interrupts = _Interrupts()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupts)
    sys.stdout.reconfigure(errors="surrogateescape")  # a file's name may be any bytes
    try:
        with caid.connect(args.socket, name=f"caidctl {args.verb}") as client:
            result, line = _VERBS[args.verb](parser, args, client, interrupts)
    except (OSError, ValueError, TypeError, FormatError, ImportError, MemoryError) as e:
        print(f"caidctl: {args.verb}: {e}", file=sys.stderr)
        code = getattr(e, "code", _OF_CLIENT)
        return _LOCAL if code >= _OF_CLIENT else _REFUSED
    except KeyboardInterrupt as e:
        print(f"caidctl: {args.verb}: interrupted: {e if e.args else 'nothing was changed'}", file=sys.stderr)
        return _LOCAL
    print(json.dumps(result) if args.json else line.format(**result), file=_beside(args))
    return _OK
