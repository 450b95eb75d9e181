"""doctor.py and the machine: every look has something that makes it fire, and a healthy neighbour."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path

import pytest

import doctor
from tinkerlab.diagnosis.environment import known_bad, machine, versions
from tinkerlab.diagnosis.environment.credentials import find_credential
from tinkerlab.errors import InputError

GOOD = {
    "tinker": "0.38.0",
    "tinker-cookbook": "0.5.8",
    "transformers": "5.5.4",
    "pydantic": "2.14.4",
}


def causes(findings) -> list[str]:
    return [finding.cause for finding in findings]


# -- versions ---------------------------------------------------------------------------------

BAD = [
    ({"pydantic": "2.13.0b1"}, "pydantic-beta"),
    ({"transformers": "5.3.0"}, "transformers-deepseek-tokenizer"),
    ({"transformers": "5.4.1"}, "transformers-excluded"),
    ({"transformers": "5.5.2"}, "transformers-excluded"),
    ({"transformers": "5.6.0"}, "transformers-excluded"),
    ({"transformers": "5.7.0"}, "transformers-too-new"),
    ({"transformers": "4.50.0"}, "transformers-too-old"),
    ({"tinker-cookbook": "0.3.1"}, "cookbook-downgraded"),
    ({"tinker-cookbook": "0.6.1", "tml-renderers": "0.2.1"}, "renderers-too-old"),
    ({"tinker": "0.20.0"}, "tinker-too-old"),
    ({"torch": "2.4.0"}, "torch-too-old"),
    ({"huggingface-hub": "0.30.0"}, "hub-too-old"),
    ({"pydantic": "2.15.0a1"}, "pre-release"),
    ({"tinker": "0.39.0rc1"}, "pre-release"),
]


@pytest.mark.parametrize(("changed", "cause"), BAD)
def test_known_bad_versions(changed: dict[str, str], cause: str) -> None:
    assert cause in causes(versions.version_findings({**GOOD, **changed}, here=False))


def test_every_rule_has_an_example() -> None:
    assert {rule.cause for rule in known_bad.KNOWN_BAD} <= {cause for _, cause in BAD}


@pytest.mark.parametrize("pydantic", ["2.12.5", "2.13.0", "2.14.4"])
def test_good_versions_are_accused_of_nothing(pydantic: str) -> None:
    assert causes(versions.version_findings({**GOOD, "pydantic": pydantic}, here=False)) == []


@pytest.mark.parametrize(
    ("name", "here", "accused"),
    [
        ("tinker", True, ["not-installed"]),
        ("tinker", False, ["not-installed"]),
        ("tinker-cookbook", True, ["not-installed"]),
        ("tinker-cookbook", False, []),  # elsewhere the SDK may be used alone
    ],
)
def test_a_missing_package(name: str, here: bool, accused: list[str]) -> None:
    left = {key: value for key, value in GOOD.items() if key != name}
    assert causes(versions.version_findings(left, here=here)) == accused


def test_the_rules_agree_with_the_installed_cookbook() -> None:
    """What tinker-cookbook's own requirement permits is not accused, and what it excludes is."""
    from importlib.metadata import requires

    from packaging.requirements import Requirement

    (needed,) = [
        Requirement(line)
        for line in requires("tinker-cookbook") or []
        if Requirement(line).name == "transformers" and "extra" not in line
    ]
    for version in [
        "4.57.5",
        "4.57.6",
        "5.0.0",
        "5.2.0",
        "5.4.0",
        "5.5.0",
        "5.5.3",
        "5.5.4",
        "5.7.0",
    ]:
        accused = bool(
            causes(versions.version_findings({**GOOD, "transformers": version}, here=False))
        )
        assert accused == (not needed.specifier.contains(version)), version


def test_this_environment_is_good() -> None:
    assert causes(versions.version_findings(versions.installed_versions(), here=True)) == []


def test_a_package_that_is_installed_twice(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "tinker-0.1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    found = list(versions.version_findings(versions.installed_versions(), here=True))
    assert "installed-twice" in causes(found)


FREEZE = "tinker==0.38.0\ntinker_cookbook==0.5.8\npydantic==2.13.0b2\n-e git+https://x\nnumpy @ file:///x\n"
PIP_LIST = "Package  Version\n-------- -------\ntinker 0.38.0\ntinker-cookbook 0.5.8\npydantic   2.13.0b2\n"


@pytest.mark.parametrize(("text", "packages"), [(FREEZE, 4), (PIP_LIST, 3)], ids=["freeze", "list"])
def test_a_freeze_file_of_another_machine(text: str, packages: int, tmp_path: Path, capsys) -> None:
    file = tmp_path / "freeze.txt"
    file.write_text(text)
    assert doctor.main(["--freeze", str(file), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["findings"][0]["cause"] == "pydantic-beta"
    assert document["checked"] == {"packages": packages}


BETA = {
    "powershell": FREEZE.encode("utf-16"),
    "byte order mark": b"\xef\xbb\xbf" + FREEZE.encode(),
    "json": b'[{"name":"tinker","version":"0.38.0"},{"name":"pydantic","version":"2.13.0b2"}]',
    "lock": b'name = "tinker"\nversion = "0.38.0"\n\nname = "pydantic"\nversion = "2.13.0b2"\n',
    "conda": b"# Name  Version  Build\ntinker 0.38.0 pypi_0 pypi\npydantic  2.13.0b2  pypi_0 pypi\n",
}


@pytest.mark.parametrize("content", BETA.values(), ids=list(BETA))
def test_other_ways_to_list_versions(content: bytes, tmp_path: Path, capsys) -> None:
    file = tmp_path / "their list.txt"
    file.write_bytes(content)
    assert doctor.main(["--freeze", str(file), "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [finding["cause"] for finding in findings] == ["pydantic-beta"]


def test_packages_installed_from_a_folder_or_a_repository_are_installed(tmp_path, capsys) -> None:
    file = tmp_path / "freeze.txt"
    file.write_text(
        "tinker @ file:///x/tinker-0.38.0-py3-none-any.whl\n"
        "-e git+https://x/tinker-cookbook.git@abc#egg=tinker_cookbook\n"
        "transformers @ git+https://x/transformers@main\n"
    )
    assert doctor.main(["--freeze", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["findings"] == []
    assert found["versions"] == {
        "tinker": "0.38.0",
        "tinker-cookbook": "?",
        "transformers": "?",
    }


def test_addresses_that_no_parser_takes_and_passwords_in_them() -> None:
    for url in ("http://[::1", "http://127.0.0.1:99999"):
        assert causes(machine.address_findings(url)) == ["base-url"]
    (finding,) = machine.address_findings("http://me:secret@example.org")
    assert "secret" not in finding.where and "example.org" in finding.where
    (note,) = machine.variable_notes({"HTTPS_PROXY": "http://me:secret@proxy:99999"})
    assert "secret" not in note and "proxy" in note


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe\x00", b"hello\n"])
def test_bad_freeze_files(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "freeze.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError, match=r"--freeze .*pip freeze"):
        doctor.main(["--freeze", str(file)])


# -- credentials ------------------------------------------------------------------------------


def jwt(expires: float) -> str:
    body = base64.urlsafe_b64encode(json.dumps({"exp": expires}).encode()).decode().rstrip("=")
    return f"eyJhbGciOiJub25lIn0.{body}.x"


@pytest.mark.parametrize(
    ("environment", "expected", "source"),
    [
        ({}, ["no-credential"], None),
        ({"TINKER_API_KEY": "tml-abcdefghijkl"}, [], "TINKER_API_KEY"),
        ({"TINKER_API_KEY": "tml-abcdefghijkl\n"}, ["api-key-malformed"], "TINKER_API_KEY"),
        ({"TINKER_API_KEY": "'tml-abcdefghijkl'"}, ["api-key-malformed"], "TINKER_API_KEY"),
        ({"TINKER_API_KEY": "sk-abcdefghijkl"}, ["api-key-malformed"], "TINKER_API_KEY"),
        ({"TINKER_API_KEY": "tml-abc"}, ["api-key-malformed"], "TINKER_API_KEY"),
        ({"TINKER_API_KEY": jwt(time.time() + 900)}, [], "TINKER_API_KEY"),
        ({"TINKER_API_KEY": jwt(time.time() - 900)}, ["credential-expired"], "TINKER_API_KEY"),
        ({"TINKER_CREDENTIAL_CMD": "printkey"}, [], "TINKER_CREDENTIAL_CMD"),
        (
            {"TINKER_API_KEY": "sk-x", "TINKER_CREDENTIAL_CMD": "printkey"},
            [],
            "TINKER_CREDENTIAL_CMD",
        ),
    ],
)
def test_credentials(environment, expected, source, tmp_path: Path) -> None:
    found = find_credential(environment, home=tmp_path)
    assert (causes(found.findings), found.source) == (expected, source)


def stored(home: Path, text: str, mode: int = 0o600) -> None:
    (home / ".tinker").mkdir()
    file = home / ".tinker" / "credentials.json"
    file.write_text(text)
    file.chmod(mode)


def test_the_stored_key_is_read_as_the_sdk_reads_it(tmp_path: Path) -> None:
    from tinker.lib.credentials import JsonCredentialStore, ManualKey

    (tmp_path / ".tinker").mkdir()
    store = JsonCredentialStore(tmp_path / ".tinker" / "credentials.json")
    store.add_key("me", ManualKey(key="tml-abcdefghijkl", name="me"))
    store.set_default("me")
    found = find_credential({}, home=tmp_path)
    assert found.source and found.source.startswith("stored key")
    assert found.findings == []
    shadowed = find_credential({"TINKER_API_KEY": "tml-aaaaaaaaaaaa"}, home=tmp_path)
    assert any("wins over" in note for note in shadowed.notes)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"default": "me", "keys": {"me": 3}}'])
def test_a_broken_credentials_file(text: str, tmp_path: Path) -> None:
    stored(tmp_path, text)
    assert "credentials-file" in causes(find_credential({}, home=tmp_path).findings)


def test_a_key_that_others_can_read(tmp_path: Path) -> None:
    stored(tmp_path, '{"default": null, "keys": {}}', mode=0o644)
    assert "credentials-readable" in causes(find_credential({}, home=tmp_path).findings)


def test_no_key_is_ever_printed(capsys, monkeypatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-verysecretkey123 ")
    doctor.main(["--offline"])
    doctor.main(["--offline", "--json"])
    assert "verysecret" not in capsys.readouterr().out


# -- machine ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://tinker.example.com/services/tinker-prod", []),
        ("http://127.0.0.1:8000", []),
        ("http://localhost:8000/", []),
        ("https://x.com/api/v1", ["base-url"]),
        ("x.com:8000", ["base-url"]),
        ("'https://x.com'", ["base-url"]),
        (" https://x.com", ["base-url"]),
        ("http://x.com", ["base-url-unencrypted"]),
    ],
)
def test_addresses(url: str, expected: list[str]) -> None:
    assert causes(machine.address_findings(url)) == expected


def test_a_setting_without_effect() -> None:
    assert causes(machine.variable_findings({"TINKER_SUBPROCESS_SAMPLING": "1"})) == [
        "setting-without-effect"
    ]
    assert causes(machine.variable_findings({})) == []


def test_proxies_and_offline_mode_are_told() -> None:
    notes = " ".join(
        machine.variable_notes({"HTTPS_PROXY": "http://u:pw@proxy:3128", "HF_HUB_OFFLINE": "1"})
    )
    assert "proxy" in notes and "HF_HUB_OFFLINE" in notes and "pw" not in notes


@pytest.mark.parametrize(
    ("model", "token", "expected"),
    [
        ("meta-llama/Llama-2-7b-hf", False, ["hub-token-missing"]),
        ("meta-llama/Llama-2-7b-hf", True, []),
        ("meta-llama/Llama-3.1-8B", False, []),
        ("Qwen/Qwen3-8B", False, []),
    ],
)
def test_gated_tokenizers(model: str, token: bool, expected: list[str]) -> None:
    assert causes(machine.gated_findings(model, token)) == expected


def test_the_hub_token_is_found_where_the_hub_keeps_it(tmp_path: Path) -> None:
    assert not machine.has_hub_token({}, home=tmp_path)
    assert machine.has_hub_token({"HF_TOKEN": "hf_x"}, home=tmp_path)
    (tmp_path / "token").touch()
    assert machine.has_hub_token({"HF_HOME": str(tmp_path)}, home=tmp_path)


def test_disk(tmp_path: Path, monkeypatch) -> None:
    import shutil

    assert causes(machine.disk_findings(tmp_path / "runs/new")) == []
    (tmp_path / "file").touch()
    assert causes(machine.disk_findings(tmp_path / "file/below")) == ["log-path-not-writable"]
    for free, severity in ((500_000_000, "warning"), (1_000_000, "problem")):
        monkeypatch.setattr(
            shutil, "disk_usage", lambda _, free=free: shutil._ntuple_diskusage(0, 0, free)
        )
        (finding,) = machine.disk_findings(tmp_path)
        assert (finding.cause, finding.severity) == ("disk-nearly-full", severity)


def test_limits(tmp_path: Path) -> None:
    import resource

    folder = tmp_path / "sys/fs/inotify"
    folder.mkdir(parents=True)
    (folder / "max_user_watches").write_text("1024\n")
    (folder / "max_user_instances").write_text("128\n")
    assert "few-inotify-watches" in causes(machine.limit_findings(tmp_path))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        assert "few-open-files" in causes(machine.limit_findings(tmp_path / "nowhere"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
