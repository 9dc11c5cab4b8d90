"""What tests share: a model folder that plain transformers loads, Python that is forked, a cluster of Ray,
and marks.
"""

import logging
import os
import signal
import socket
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.conftest import needs_vllm
from tests.forked import ForkServer, receive


def test_tiny_model_dir_loads_and_its_tokenizer_round_trips(tiny_model_dir: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    text = "What is 3 + 4?\n<answer>é 7</answer>"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True, tokenize=False
    )
    assert rendered == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer(rendered, return_tensors="pt").input_ids
    assert ids[0, 0] == tokenizer.convert_tokens_to_ids("<|im_start|>")
    assert tokenizer.eos_token_id == model.config.eos_token_id
    assert tokenizer.pad_token_id == model.config.pad_token_id != tokenizer.eos_token_id
    assert torch.isfinite(model(ids).logits).all()


def test_tests_of_one_file_stay_in_one_process_and_so_do_those_that_start_vllm(
    request: pytest.FixtureRequest,
) -> None:
    """pytest-xdist reads a test's group from the suffix it adds to the node id; pytest 9.2 ignores that
    suffix.
    """
    if not hasattr(request.config, "workerinput"):
        pytest.skip("this session has one process")
    assert request.node.nodeid.endswith("@tests/test_conftest.py")
    with_vllm = [item.nodeid for item in request.session.items if needs_vllm(item)]
    assert [name for name in with_vllm if not name.endswith("@vllm")] == []


PROGRAM = """
import atexit, os, sys, time
atexit.register(print, "the end")
print(__name__, sys.argv, os.getcwd(), os.environ["WORD"], sys.path[0], "torch" in sys.modules, flush=True)
if sys.argv[1] == "fail":
    raise KeyError("of the program")
if sys.argv[1] == "wait":
    time.sleep(100)
sys.exit(int(sys.argv[1]))
"""


def test_a_forked_program_sees_and_leaves_what_python_would(forked_python: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = os.environ | {"WORD": "said"}

    def start(*arguments: str) -> "subprocess.Popen[str]":
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(
            [forked_python, *arguments], cwd=tmp_path, env=environment, text=True, **streams
        )  # type: ignore[call-overload]

    for arguments in (("-m", "program", "7"), ("program.py", "7")):
        process = start(*arguments)
        first = str(tmp_path / "program.py") if "-m" in arguments else "program.py"
        assert process.communicate(timeout=240) == (
            f"__main__ {[first, '7']} {tmp_path} said {tmp_path} True\nthe end\n",
            "",
        )
        assert process.returncode == 7
    failed = start("-m", "program", "fail")
    assert (
        failed.communicate(timeout=240)[1].endswith("KeyError: 'of the program'\n") and failed.returncode == 1
    )
    for number in (signal.SIGTERM, signal.SIGKILL):
        waiting = start("-m", "program", "wait")
        assert waiting.stdout is not None and waiting.stdout.readline().startswith("__main__")
        waiting.send_signal(number)
        waiting.communicate(timeout=240)  # its streams are closed: the process is gone, not only the client
        assert waiting.returncode == -number
    plain = start("-c", "import sys; print('torch' in sys.modules)")
    assert plain.communicate(timeout=240) == ("False\n", "")


def test_a_signal_that_comes_before_the_process_is_known_reaches_it(tmp_path: Path) -> None:
    """And one that comes when it has ended does no harm."""
    address = str(tmp_path / "socket")
    ForkServer.write_client(SimpleNamespace(address=address), tmp_path / "python")  # type: ignore[arg-type]
    with socket.socket(socket.AF_UNIX) as listener, subprocess.Popen(["sleep", "60"]) as program:
        listener.bind(address)
        listener.listen()
        with subprocess.Popen([tmp_path / "python", "-m", "program"]) as client:
            connection, _ = listener.accept()
            for stream in receive(connection)[1]:
                os.close(stream)
            client.send_signal(signal.SIGTERM)
            connection.sendall(f"{program.pid}\n".encode())
            assert program.wait(60) == -signal.SIGTERM
            client.send_signal(signal.SIGTERM)
            connection.sendall(b"3\n")
            assert client.wait(60) == 3
        connection.close()


@pytest.mark.parametrize("order", ["leaves", "finds"])
def test_what_a_test_sets_for_its_process_ends_with_it(order: str) -> None:
    """The first case leaves what the second one does not find."""
    logger = logging.getLogger("verl.trainer.of_a_test")
    if order == "leaves":
        signal.signal(signal.SIGUSR1, lambda *_: None)
        logger.setLevel(logging.ERROR)
        logging.disable(logging.ERROR)
        torch.set_default_dtype(torch.float64)
        return
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    assert logger.level == logging.NOTSET and logging.root.manager.disable < logging.ERROR
    assert torch.get_default_dtype() is torch.float32


@pytest.mark.ray
def test_the_shared_cluster_is_idle_unless_a_test_leaves_something_there(ray_cluster: None) -> None:
    import ray

    from tests.conftest import is_idle

    class Left:
        pass

    assert is_idle(within_s=60)
    left = ray.remote(Left).options(name="left", lifetime="detached").remote()
    assert not is_idle(within_s=0)
    ray.kill(left)
    assert is_idle(within_s=60)


def test_whole_runs_are_integration_tests_and_those_of_a_formula_are_not(
    request: pytest.FixtureRequest,
) -> None:
    for item in request.session.items:
        if item.nodeid.startswith(("tests/e2e/", "tests/recipe/", "tests/trainer/ppo/core_algos/")):
            assert (item.get_closest_marker("integration") is None) == item.nodeid.startswith(
                "tests/trainer/"
            ), item.nodeid
