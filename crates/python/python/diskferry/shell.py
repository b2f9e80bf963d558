"""The NBD shell: nbdsh's options and prompt, with diskferry.nbd as `nbd`.

    diskferry shell -u nbd://localhost -c 'print(h.get_size())'
"""

import argparse
import code
import os
import sys
import traceback
from typing import Any, Optional, Sequence

from . import __version__, nbd


class _Snippet(argparse.Action):
    """Collects the actions in the order of the command line."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: Optional[str] = None,
    ) -> None:
        snippets = list(getattr(namespace, "snippets"))
        snippets.append((self.dest, values))
        namespace.snippets = snippets


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="diskferry shell",
        description="A Python shell for NBD: nbdsh's options, and `nbd` is diskferry.nbd. "
        "`h` is a handle; the names that `import diskferry` gives are there as `diskferry`.",
        epilog="With -c, statements are run in turn, without a prompt.",
    )
    parser.set_defaults(snippets=[])
    add = parser.add_argument
    add("-b", "--base-allocation", action=_Snippet, nargs=0,
        help="ask for the context base:allocation, the map")
    add("-c", "--command", action=_Snippet, metavar="CMD",
        help="run a statement of Python (- reads them from standard input); may be given again")
    add("-n", action="store_true", help="make no handle h")
    add("--opt-mode", action=_Snippet, nargs=0, help="stop before an export is chosen, to negotiate options")
    add("-u", "--uri", action=_Snippet, help="connect to an NBD URI")
    add("--connect", dest="uri", action=_Snippet, help=argparse.SUPPRESS)
    add("-v", "--verbose", action="store_true", help="print what is negotiated and messages of servers")
    add("-V", "--version", action="version", version=f"diskferry shell {__version__}")
    return parser


def _banner(handle: Optional[nbd.NBD]) -> str:
    lines = ["", "This is diskferry's shell for NBD: Python, with diskferry.nbd as nbd.", ""]

    def example(text: str, meaning: str) -> None:
        lines.append(f"{text:<34} # {meaning}")

    if handle is None:
        example("h = nbd.NBD()", "Create a handle")
    else:
        state = handle.connection_state().partition(":")[0]
        lines += [f"The handle h is in state {state}.", ""]
    if handle is None or handle.aio_is_created():
        example('h.connect_uri("nbd://localhost")', "Connect to a server")
    if handle is not None and handle.aio_is_negotiating():
        example("h.opt_go()", "Open the export")
    example("h.get_size()", "Size of the disk in bytes")
    example("buf = h.pread(512, 0)", "Read the first sector")
    example("help(nbd.NBD)", "What else there is")
    example("exit() or Ctrl-D", "Leave")
    lines.append("")
    return "\n".join(lines)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs the shell; returns the exit status."""
    args = _parser().parse_args(argv)
    needs_handle = [name for name, _ in args.snippets if name != "command"]
    if args.n and needs_handle:
        print(
            "error: -n option cannot be used with --base-allocation, --opt-mode or --uri",
            file=sys.stderr,
        )
        return 1
    if args.verbose:
        os.environ["LIBNBD_DEBUG"] = "1"
    import diskferry

    names: dict[str, Any] = {"__name__": "__main__", "nbd": nbd, "diskferry": diskferry}
    names.update(os=os, sys=sys)
    handle = None
    if not args.n:
        handle = nbd.NBD()
        handle.set_handle_name("nbdsh")
        names["h"] = handle
    # Scripts for nbdsh may import nbd themselves; where libnbd is missing they get diskferry.nbd.
    sys.modules.setdefault("nbd", nbd)
    try:
        for name, value in args.snippets:
            if name == "command":
                text = sys.stdin.read() if value == "-" else value
                exec(compile(text, "<command>", "exec"), names)  # noqa: S102 - that is what -c is for
            elif handle is not None:
                _prepare(handle, name, value)
    except nbd.Error as error:
        if args.verbose:
            traceback.print_exc()
        else:
            print(f"nbdsh: command line script failed: {error.string}", file=sys.stderr)
        return 1
    if not any(name == "command" for name, _ in args.snippets):
        _interact(names, handle)
    return 0


def _prepare(handle: nbd.NBD, name: str, value: Any) -> None:
    if name == "base_allocation":
        handle.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
    elif name == "opt_mode":
        handle.set_opt_mode(True)
    else:
        handle.connect_uri(value)


def _interact(names: dict[str, Any], handle: Optional[nbd.NBD]) -> None:
    try:
        import readline
        import rlcompleter

        readline.set_completer(rlcompleter.Completer(names).complete)
        readline.parse_and_bind("tab: complete")
    except ImportError:
        pass
    sys.ps1 = "nbd> "
    code.interact(banner=_banner(handle), local=names, exitmsg="")


if __name__ == "__main__":
    sys.exit(main())
