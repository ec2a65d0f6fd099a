"""Checks the claims of README.md, or makes docs/results.md and what it shows.

python -m benchmarks.claims check
python -m benchmarks.claims write
"""

from __future__ import annotations

import argparse
import pathlib
import sys

from benchmarks.claims import check, comparison, overview, page
from benchmarks.claims.listed import CLAIMS


def main() -> int:
    """Says what is wrong, or writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["check", "write"])
    options = parser.parse_args()
    tree = page.Tree(pathlib.Path(__file__).parents[2])
    if options.what == "write":
        tree.page.write_text(page.made(tree, CLAIMS))
        print(f"wrote {tree.page.relative_to(tree.root)}")
        records = tree.records()
        if "peers" in records:
            table = comparison.table(records["peers"])
            tree.write_readme(comparison.inserted(tree.readme, table))
            picture = tree.root / "docs" / "overview.png"
            overview.draw(
                records["accuracy"]["rows"], records["peers"]["rows"], picture
            )
            print(f"wrote README.md's table and {picture.name}")
        for words in check.proposed(tree, CLAIMS):
            print(f"README.md should say: {words}")
        return 0
    wrong = check.problems(tree, CLAIMS)
    for problem in wrong:
        print(f"- {problem}")
    print(
        f"{len(wrong)} problems" if wrong else f"all {len(CLAIMS)} claims hold"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
