"""Emulators run on loopback alone, end with the test, and are left out where nobody asked."""

import os
import re
import signal
from pathlib import Path

import boto3
import pytest

from tests.support import emulators
from tests.support.emulators import CHOICE, INSTALLED, MOTO, chosen, emulator, our_packages
from tests.support.eventually import eventually
from tests.support.processes import Processes, is_running


def _listening(group: int) -> set[str]:
    """Return the addresses, in hexadecimal, on which processes of a group listen."""
    held: set[str] = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(entry.name)) == group:
                held |= {os.readlink(fd) for fd in (entry / "fd").iterdir()}
        except OSError:  # it has ended meanwhile
            continue
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in held:
                found.add(words[1].split(":")[0])
    return found


@pytest.mark.parametrize("name", [*INSTALLED, MOTO])
def test_an_emulator_listens_on_loopback_alone_and_ends_with_its_block(name: str) -> None:
    with emulator(name) as it:
        client = boto3.client("sqs", endpoint_url=it.url, region_name=it.region)
        made = client.create_queue(QueueName="q")["QueueUrl"]
        found = client.get_queue_attributes(QueueUrl=made, AttributeNames=["QueueArn"])
        client.close()
        assert found["Attributes"]["QueueArn"] == it.arn("sqs", "q")
        assert re.match(re.escape(it.url) + "/", made)
        assert _listening(it.process.pid) == {"0100007F"}
        pid = it.process.pid
    assert not is_running(pid)


@pytest.mark.parametrize("name", [*INSTALLED, MOTO])
def test_an_emulator_of_a_killed_test_ends_with_it(name: str, processes: Processes) -> None:
    emulators.need(name)
    process = processes.python(
        "-c",
        "import time\n"
        "from tests.support.emulators import emulator\n"
        f"with emulator({name!r}) as it:\n"
        "    print(f'emulator {it.process.pid}', flush=True)\n"
        "    time.sleep(300)\n",
        env={CHOICE: name},
    )
    pid = int(process.wait_for(r"^emulator (\d+)$", within=180)[1])
    process.send(signal.SIGKILL)
    eventually(lambda: not is_running(pid))


def test_functions_that_ministack_runs_find_our_packages() -> None:
    """And its own process does not: its packages are of other versions than ours."""
    import io
    import zipfile

    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(
            "h.py",
            "import os, botocore, workhorse\n"
            "def handler(event, context):\n"
            "    return [workhorse.__name__, botocore.__version__, os.environ['SAID']]\n",
        )
    with emulator("ministack", python_path=our_packages(), env={"SAID": "so"}) as it:
        client = boto3.client("lambda", endpoint_url=it.url, region_name=it.region)
        client.create_function(
            FunctionName="f",
            Runtime="python3.11",
            Role="arn:aws:iam::000000000000:role/r",
            Handler="h.handler",
            Code={"ZipFile": packed.getvalue()},
            Timeout=30,
        )
        answer = client.invoke(FunctionName="f")["Payload"].read().decode()
        client.close()
    import botocore

    assert answer == f'["workhorse", "{botocore.__version__}", "so"]'


def test_moto_alone_is_chosen_unless_others_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CHOICE, raising=False)
    assert chosen() == (MOTO,)
    monkeypatch.setenv(CHOICE, "ministack, fauxqs")
    assert chosen() == ("ministack", "fauxqs")
    with pytest.raises(pytest.skip.Exception, match="leaves moto out"):
        emulators.need(MOTO)
    with pytest.raises(pytest.skip.Exception, match="make emulators"):
        emulators.need("localstack")
    monkeypatch.setenv(CHOICE, "all")
    assert chosen() == (*INSTALLED, MOTO)
    monkeypatch.setenv(CHOICE, "localstak")
    with pytest.raises(ValueError, match="localstak"):
        chosen()
