import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greedw_daemon.cluster import state_dir as files
from greedw_daemon.cluster.state_dir import (
    SCHEMA,
    AcceptedConfig,
    Agreement,
    ClusterRecord,
    StateDir,
    clean_name,
)
from greedw_daemon.control.client import prepare_init
from greedw_p2p.config import Address, Config, Member
from greedw_p2p.errors import StateDirError
from greedw_p2p.ids import Ballot, ClusterId, EntryIndex, Incarnation, LineageId, NodeId

NOBODY = 65_534


def member(number: int) -> Member:
    return Member(
        NodeId(f"{number:032x}"), Incarnation(1), f"lab-{number}", Address("127.0.0.1", 7000)
    )


RECORD = ClusterRecord(
    SCHEMA, ClusterId("c" * 32), "lab", LineageId("d" * 32), founder=False, contacts=(member(1),)
)
AGREEMENT = Agreement(
    LineageId("d" * 32),
    EntryIndex(7),
    Config((member(1), member(2))),
    AcceptedConfig(EntryIndex(8), Ballot(0, member(1).node), Config((member(1),))),
)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_new_directory_is_private_with_private_files(tmp_path: Path) -> None:
    with StateDir.open(tmp_path / "deep" / "node") as directory:
        directory.next_incarnation()
        directory.write_cluster(RECORD)
        directory.write_agreement(AGREEMENT)
        directory.write_invites(())
        names = {path.name for path in directory.path.iterdir()}
        assert names == {
            files.LOCK, files.IDENTITY, files.INCARNATION, files.CLUSTER, files.AGREEMENT,
            files.INVITES,
        }  # fmt: skip
        assert mode_of(directory.path) == 0o700
        assert {mode_of(path) for path in directory.path.iterdir()} == {0o600}


def test_open_directory_is_closed_to_others(tmp_path: Path) -> None:
    path = tmp_path / "node"
    path.mkdir(mode=0o755)
    with StateDir.open(path):
        assert mode_of(path) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files for another user")
def test_files_that_root_makes_belong_to_the_directorys_user(tmp_path: Path) -> None:
    path = tmp_path / "node"
    path.mkdir(mode=0o700)
    os.chown(path, NOBODY, NOBODY)
    prepare_init(path, "lab", name="a")
    with StateDir.open(path) as directory:
        directory.next_incarnation()
    made = {file.name: (file.stat().st_uid, file.stat().st_gid) for file in path.iterdir()}
    assert made == dict.fromkeys(
        ("lock", "identity.json", "incarnation", "cluster.json"), (NOBODY, NOBODY)
    )


def test_identity_stays_and_name_can_change(tmp_path: Path) -> None:
    with StateDir.open(tmp_path, name="lab-a") as directory:
        first = directory.identity
    with StateDir.open(tmp_path) as directory:
        assert directory.identity == first
    with StateDir.open(tmp_path, name="lab-b") as directory:
        assert (directory.identity.node, directory.identity.name) == (first.node, "lab-b")
    assert len(first.node) == 32


def test_two_directories_are_two_nodes(tmp_path: Path) -> None:
    with StateDir.open(tmp_path / "a") as a, StateDir.open(tmp_path / "b") as b:
        assert a.identity.node != b.identity.node


def test_incarnation_rises_with_each_life_across_restarts(tmp_path: Path) -> None:
    with StateDir.open(tmp_path) as directory:
        assert [directory.next_incarnation() for _ in range(2)] == [1, 2]
    with StateDir.open(tmp_path) as directory:
        assert directory.next_incarnation() == 3


def test_second_process_is_refused_with_the_first_ones_id(tmp_path: Path) -> None:
    with StateDir.open(tmp_path):
        with pytest.raises(StateDirError, match=f"in use by process {os.getpid()}$"):
            StateDir.open(tmp_path)
        program = (
            f"from greedw_daemon.cluster.state_dir import *; StateDir.open(Path({str(tmp_path)!r}))"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
        assert done.returncode == 1
        assert f"in use by process {os.getpid()}".encode() in done.stderr
    StateDir.open(tmp_path).close()


def test_lock_ends_with_its_process_however_it_ends(tmp_path: Path) -> None:
    program = (
        "import os; from greedw_daemon.cluster.state_dir import *;"
        f"StateDir.open(Path({str(tmp_path)!r})); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == -9
    StateDir.open(tmp_path).close()


@pytest.mark.parametrize("place", ["/proc/greedw", "/dev/null/greedw"])
def test_directory_that_cannot_be_made_is_named(place: str) -> None:
    with pytest.raises(StateDirError, match=f"cannot create the state directory {place}") as caught:
        StateDir.open(Path(place))
    assert "--state-dir" in caught.value.hint


def test_file_in_the_place_of_the_directory_is_named(tmp_path: Path) -> None:
    path = tmp_path / "node"
    path.write_text("not a directory")
    with pytest.raises(StateDirError, match="is not a directory"):
        StateDir.open(path)


def test_directory_without_permission_is_named_as_not_writable() -> None:
    # Not in pytest's folder, which nobody but its owner may enter; and root may write anywhere, so
    # the test gives up its rights for the moment.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder) / "node"
        path.mkdir(mode=0o500)
        owner = os.geteuid() or NOBODY
        os.chown(path, owner, -1)
        user = os.geteuid()
        os.seteuid(owner)
        try:
            with pytest.raises(StateDirError, match="is not writable"):
                StateDir.open(path)
        finally:
            os.seteuid(user)


def test_shared_directory_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "shared"
    path.mkdir()
    path.chmod(0o1777)
    with pytest.raises(StateDirError, match="shared with others"):
        StateDir.open(path)
    assert mode_of(path) == 0o1777
    assert list(path.iterdir()) == []


def test_records_read_back_as_written(tmp_path: Path) -> None:
    with StateDir.open(tmp_path) as directory:
        assert directory.cluster() is None
        assert directory.agreement() is None
        assert directory.invites() == ()
        directory.write_cluster(RECORD)
        directory.write_agreement(AGREEMENT)
    with StateDir.open(tmp_path) as directory:
        assert directory.cluster() == RECORD
        assert directory.agreement() == AGREEMENT


def test_forgetting_the_cluster_keeps_identity_and_lives(tmp_path: Path) -> None:
    with StateDir.open(tmp_path) as directory:
        identity = directory.identity
        directory.next_incarnation()
        directory.write_cluster(RECORD)
        directory.write_agreement(AGREEMENT)
        directory.forget_cluster()
        directory.forget_cluster()
    with StateDir.open(tmp_path) as directory:
        assert directory.cluster() is None
        assert directory.agreement() is None
        assert directory.identity == identity
        assert directory.next_incarnation() == 2


def test_new_cluster_does_not_inherit_an_old_agreement(tmp_path: Path) -> None:
    with StateDir.open(tmp_path) as directory:
        directory.write_cluster(RECORD)
        directory.write_agreement(AGREEMENT)
        directory.write_cluster(RECORD)
        assert directory.agreement() is None


@given(data=st.data())
def test_any_damage_to_the_agreement_is_found(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("node")
    with StateDir.open(path) as directory:
        directory.write_agreement(AGREEMENT)
        whole = bytearray((path / files.AGREEMENT).read_bytes())
        at = data.draw(st.integers(0, len(whole) - 1))
        if data.draw(st.booleans()):
            whole[at] ^= data.draw(st.integers(1, 255))
        else:
            del whole[at:]
        (path / files.AGREEMENT).write_bytes(whole)
        with pytest.raises(StateDirError, match=r"agreement is damaged"):
            directory.agreement()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (files.IDENTITY, b""),
        (files.IDENTITY, b'{"schema": 1, "node": "short", "name": "a"}'),
        (files.IDENTITY, b"\xff\xfe"),
        (files.IDENTITY, b"[" * 100_000),
    ],
)
def test_damaged_identity_is_named_and_not_replaced(
    tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(StateDirError, match=f"{name} is damaged"):
        StateDir.open(tmp_path)
    assert (tmp_path / name).read_bytes() == content
    (tmp_path / name).unlink()
    StateDir.open(tmp_path).close()  # the failed one has let the lock go


def test_damaged_cluster_record_and_incarnation_are_named(tmp_path: Path) -> None:
    with StateDir.open(tmp_path) as directory:
        (tmp_path / files.CLUSTER).write_text('{"schema": 1}')
        with pytest.raises(StateDirError, match=r"cluster\.json is damaged"):
            directory.cluster()
        (tmp_path / files.INCARNATION).write_text("-3")
        with pytest.raises(StateDirError, match="incarnation is damaged"):
            directory.next_incarnation()


def test_failed_write_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StateDir.open(tmp_path) as directory:
        directory.write_cluster(RECORD)
        before = sorted(path.name for path in tmp_path.iterdir())

        def no_space(_: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", no_space)
        with pytest.raises(StateDirError, match=r"cannot write .*invites\.json: No space left"):
            directory.write_invites(())
        assert directory.cluster() == RECORD
        assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_file_and_directory_are_synced_before_a_write_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = os.fsync

    def watch(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        renamed = (tmp_path / files.INCARNATION).exists()
        synced.append(f"{path.name} {'after' if renamed else 'before'} the rename")
        sync(descriptor)

    with StateDir.open(tmp_path) as directory:
        monkeypatch.setattr(os, "fsync", watch)
        directory.next_incarnation()
    assert synced == [".incarnation.new before the rename", f"{tmp_path.name} after the rename"]


@given(st.text(max_size=200))
def test_cleaned_name_is_short_and_printable(text: str) -> None:
    name = clean_name(text)
    assert len(name) <= 64
    assert not any(character.isspace() or not character.isprintable() for character in name)
    assert clean_name(name) in (name, name.strip("-"))
