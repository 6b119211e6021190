"""`python -m papers`: list the experiments, run one (`NAME ...`), or check claims (`check [PAPER ...]`)."""

import sys

from mereo.cli.main import main
from mereo.errors import MereoError, UsageError
from mereo.runtime.printing import say
from papers.checks import check

if __name__ == "__main__":
    words = sys.argv[1:]
    if words[:1] != ["check"]:
        sys.exit(main(["reproduce", *words]))
    try:
        sys.exit(check(words[1:]))
    except (MereoError, UsageError) as error:
        say(f"papers: error: {error}", file=sys.stderr)
        sys.exit(2)
