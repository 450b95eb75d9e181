"""What tests of many rooms share: a running rehearsal, and an environment without surprises."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import tinker

ROOT = Path(__file__).resolve().parents[1]
TINY = "tiny:llama"

# No test may reach a hub, the hosted service or a user's own key; scripts that tests start
# inherit this.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TINKER_TELEMETRY"] = "0"
for name in ("TINKER_API_KEY", "TINKER_BASE_URL", "TINKER_CREDENTIAL_CMD"):
    os.environ.pop(name, None)
sys.path.insert(0, str(ROOT / "scripts"))
# A shell that starts the tests in the background makes them ignore Ctrl-C, and with them every
# script that they interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

from tinkerlab.rehearsal.service.launch import DUMMY_KEY, Rehearsal, rehearsal_server  # noqa: E402


@dataclass
class RunningRehearsal:
    """A rehearsal that tests talk to.

    Attributes:
        model: name to pass as ``base_model``.
        model_dir: the same model's folder, for transformers and renderers.
        env: environment for scripts that a test starts.
    """

    base_url: str
    env: dict[str, str]
    model: str
    model_dir: Path
    store: Path
    server: Rehearsal
    clients: list[tinker.ServiceClient] = field(default_factory=list)

    def client(self) -> tinker.ServiceClient:
        """A new SDK client (a session of its own), closed with the rehearsal."""
        import tinker

        self.clients.append(tinker.ServiceClient(base_url=self.base_url, api_key=DUMMY_KEY))
        return self.clients[-1]

    def close_clients(self) -> None:
        """End the clients' heartbeats, which would go on after the service is gone."""
        for client in self.clients:
            if client._session_holder is not None:
                client._session_holder.close()

    def rest(self) -> tinker.RestClient:
        import tinker

        return tinker.RestClient(base_url=self.base_url, api_key=DUMMY_KEY)


StartRehearsal = Callable[..., AbstractContextManager[RunningRehearsal]]


def running(store: Path, model: str = TINY, **options) -> AbstractContextManager[RunningRehearsal]:
    """A rehearsal of ``model`` in a process of its own; options as ``rehearsal_server`` takes."""
    from contextlib import contextmanager

    from tinkerlab.rehearsal.models.registry import resolve

    @contextmanager
    def start() -> Iterator[RunningRehearsal]:
        with rehearsal_server([model], store=store, **options) as server:
            source = resolve(model)
            started = RunningRehearsal(
                base_url=server.base_url,
                env=server.env,
                model=source.name,
                model_dir=source.directory,
                store=store,
                server=server,
            )
            try:
                yield started
            finally:
                started.close_clients()

    return start()


@pytest.fixture(scope="session")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRehearsal]:
    """One rehearsal of a tiny model for the whole test session: make names of your own in it."""
    with running(tmp_path_factory.mktemp("rehearsal")) as shared:
        yield shared


@pytest.fixture
def start_rehearsal(tmp_path: Path) -> StartRehearsal:
    """Starts a rehearsal of one's own: ``with start_rehearsal(faults=["429:3x"]) as server:``."""

    def start(**options) -> AbstractContextManager[RunningRehearsal]:
        return running(options.pop("store", tmp_path / "store"), **options)

    return start


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which blocks of the pages nothing here can check, and why."""
    ran = (
        r.nodeid for found in terminalreporter.stats.values() for r in found if hasattr(r, "nodeid")
    )
    if not any("tests/docs/" in nodeid for nodeid in ran):
        return
    from markdown_pages import markdown_pages, page_blocks, unchecked_blocks

    total = sum(len(page_blocks(page)) for page in markdown_pages())
    left = unchecked_blocks()
    terminalreporter.write_line(f"pages: {total} code blocks, {len(left)} beyond checking")
    for block in left:
        terminalreporter.write_line(f"  {block}: {block.not_checked}")
