"""docs/notebook.ipynb: each of its cells runs, in their order, and prints and shows what is stored with it."""

import ast
import contextlib
import html.parser
import io
import json
import os
import tempfile
import unittest

NOTEBOOK = os.path.join(os.path.dirname(__file__), "..", "..", "..", "docs", "notebook.ipynb")


def result_of(source: str, names: dict):
    """Runs a cell, and returns the value of its last expression, as a notebook does."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), names)
    return eval(compile(ast.Expression(last.value), "<cell>", "eval"), names) if last else None


class Notebook(unittest.TestCase):
    def test_every_cell_shows_what_is_stored_with_it(self):
        try:
            import matplotlib
        except ImportError:
            self.skipTest("matplotlib is missing: pip install matplotlib")
        # No window is opened.
        matplotlib.use("agg")
        import matplotlib.pyplot

        with open(NOTEBOOK) as file:
            cells = [cell for cell in json.load(file)["cells"] if cell["cell_type"] == "code"]
        self.assertGreaterEqual(len(cells), 5)
        names: dict = {}
        # The notebook's own directory goes with this one.
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(setattr, tempfile, "tempdir", tempfile.tempdir)
        self.addCleanup(os.chdir, os.getcwd())
        tempfile.tempdir = folder.name
        # Another test may have drawn something.
        matplotlib.pyplot.close("all")
        pictures = plots = 0
        for cell in cells:
            source = "".join(cell["source"])
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                value = result_of(source, names)
            stored = "".join("".join(out["text"]) for out in cell["outputs"] if out["output_type"] == "stream")
            self.assertEqual(printed.getvalue(), stored, source)
            data = {kind: out["data"][kind] for out in cell["outputs"] for kind in out.get("data", {})}
            if "text/html" in data:
                shown = value._repr_html_()
                self.assertEqual(shown, "".join(data["text/html"]), source)
                html.parser.HTMLParser().feed(shown)
                pictures += 1
            # The points of a plot differ from one version of matplotlib to the next: that there is one is enough.
            drawn = len(matplotlib.pyplot.get_fignums())
            self.assertEqual(drawn, sum("image/png" in out.get("data", {}) for out in cell["outputs"]), source)
            plots += drawn
            matplotlib.pyplot.close("all")
        self.assertGreaterEqual((pictures, plots), (3, 2))


if __name__ == "__main__":
    unittest.main()
