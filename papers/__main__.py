"""`python -m papers`: list the experiments, run one (`NAME ...`), or check claims (`check [PAPER ...]`)."""

import sys

from mereo.cli.main import main

if __name__ == "__main__":
    words = sys.argv[1:]
    if words[:1] == ["check"]:
        from papers.checks import check

        sys.exit(check(words[1:]))
    sys.exit(main(["reproduce", *words]))
