"""Coverage-guided fuzzing of one door, with atheris: python tests/fuzz DOOR --seconds N.

Ends with the first input that breaks a promise, which is kept as FOLDER/crashes/DOOR-crash-HASH, or
-timeout- or -oom-; what is being tried is in DOOR-running, for a process that had to be killed.
What reaches new code is kept in FOLDER/corpus/DOOR: a second run begins there.
"""

import argparse
import logging
import os
import sys
import tempfile
from hashlib import sha1
from pathlib import Path
from random import Random

import atheris

HERE = Path(__file__).parent
sys.path.insert(1, str(HERE.parent))
with atheris.instrument_imports(include=["argus_cli", "PIL", "av", "pillow_heif", "tomllib"]):
    from doors import DOORS, MEMORY_BYTES, SECONDS, knock
    from mutations import swap_token


def main() -> None:
    parser = argparse.ArgumentParser(prog="python tests/fuzz", description=__doc__)
    parser.add_argument("door", choices=DOORS)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="default: a temporary one")
    options = parser.parse_args()
    keep = options.keep or Path(tempfile.mkdtemp(prefix="argus-fuzz-"))
    corpus, crashes = keep / "corpus" / options.door, keep / "crashes"
    for folder in (corpus, crashes):
        folder.mkdir(parents=True, exist_ok=True)
    door, regressions = DOORS[options.door], HERE / "regressions" / options.door
    for seed in [*door.seeds(), *(path.read_bytes() for path in regressions.glob("*.bin"))]:
        (corpus / sha1(seed).hexdigest()).write_bytes(seed)
    # As in the command, our own warnings are formatted; here nobody reads them.
    logging.basicConfig(stream=open(os.devnull, "w"))
    limits = {
        "max_total_time": options.seconds, "timeout": SECONDS, "rss_limit_mb": MEMORY_BYTES >> 20,
        "max_len": 1 << 16, "artifact_prefix": f"{crashes}/{options.door}-", "print_final_stats": 1,
    }  # fmt: skip
    flags = [f"-{name}={value}" for name, value in limits.items()]
    running = crashes / f"{options.door}-running"

    def enter(data: bytes) -> None:
        running.write_bytes(data)
        knock(door, data)

    mutator = {"custom_mutator": mutate} if door.is_text else {}
    atheris.Setup([sys.argv[0], *flags, str(corpus)], enter, **mutator)
    atheris.Fuzz()


def mutate(data: bytes, most: int, seed: int) -> bytes:
    """Half of the time the syntax stays whole."""
    random = Random(seed)
    return swap_token(data, random)[:most] if random.random() < 0.5 else atheris.Mutate(data, most)


main()
