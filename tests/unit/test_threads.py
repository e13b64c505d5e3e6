"""One captioner in many threads, two in one process, and one carried into a forked process."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import draw

import argus_cli

SAMPLING = argus_cli.Sampling(12)
PICTURES = [draw(90, 60, seed) for seed in range(6)]


@pytest.fixture(scope="module")
def captioners(tiny_folder: Path) -> list[argus_cli.Captioner]:
    return [argus_cli.load(tiny_folder, dtype=dtype) for dtype in ("float32", "bfloat16")]


def test_threads_and_captioners_do_not_disturb_each_other(
    captioners: list[argus_cli.Captioner],
) -> None:
    jobs = [(captioner, picture) for picture in PICTURES for captioner in captioners]

    def answer(job: tuple[argus_cli.Captioner, object]) -> str:
        return job[0].caption(job[1], sampling=SAMPLING).caption

    alone = [answer(job) for job in jobs]
    assert len(set(alone)) >= len(PICTURES)
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(answer, jobs)) == alone


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_is_refused_at_once(captioners: list[argus_cli.Captioner]) -> None:
    captioners[0].caption(PICTURES[0], sampling=SAMPLING)  # makes the threads that stay behind
    child = os.fork()
    if not child:
        signal.alarm(20)
        try:
            captioners[0].caption(PICTURES[0], sampling=SAMPLING)
        except argus_cli.ModelError as error:
            os._exit(7 if "load it here" in str(error) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
