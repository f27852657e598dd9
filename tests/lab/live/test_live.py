"""The live view: who gets an answer, what it says of a run in any state, and the page in a real browser."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.browser import CHROMIUM, Browser
from tests.conftest import QUICK_VARIABLES
from tests.lab.test_cli import command, start

from etd.cli import main
from etd.core.errors import UserError
from etd.lab.film import distance_map
from etd.lab.live import level
from etd.lab.live.follow import LINES, POINTS, Follower
from etd.lab.live.serve import Server
from etd.lab.runs import session
from etd.lab.runs.lock import claim
from etd.lab.runs.store import Run
from etd.training import presets

GROWING = np.array([[0.1, 0.2, 0.3, 0.4], [0.2, 0.4, 0.6, 0.8]])


@contextmanager
def serving(path: Path, **options: Any) -> Iterator[Server]:
    with Server(path, 0, **options) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def server(trained: Path) -> Iterator[Server]:
    with serving(trained) as server:
        yield server


def ask(server: Server, address: str, method: str = "GET", **headers: str | None) -> tuple[int, dict[str, str], str]:
    """Status, headers and text of an answer; a header that is None is left out."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    given = {"Host": f"127.0.0.1:{server.server_port}", **headers}
    connection.putrequest(method, address, skip_host=True)
    for name, value in given.items():
        if value is not None:
            connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, dict(answer.getheaders()), text


def data(server: Server) -> dict[str, Any]:
    status, _, text = ask(server, f"/data?token={server.token}")
    assert status == 200
    return json.loads(text)


# Who gets an answer ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["/", "/data", "/map", "/nothing"])
def test_without_the_token_there_is_nothing(server: Server, trained: Path, address: str) -> None:
    for query in ("", "?token=", f"?token={server.token[:-1]}", f"?token={server.token}x", "?token=%ff%00%C3%A9"):
        status, _, text = ask(server, address + query)
        assert (status, text) == (403, "Open the address that `etd watch --live` printed, token and all.")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:99", "localhost:8383", "LOCALHOST", "[::1]:1"])
def test_a_tunnel_may_end_at_any_port(server: Server, host: str) -> None:
    assert ask(server, f"/data?token={server.token}", Host=host)[0] == 200


@pytest.mark.parametrize(
    "host",
    [None, "", "evil.example", "127.0.0.1.evil.example", "evil.example:8383", "localhost.evil", "127.0.0.1@evil"],
)
def test_another_name_for_this_machine_is_refused(server: Server, host: str | None) -> None:
    """DNS that was rebound to this machine would carry the right token if it leaked."""
    assert ask(server, f"/?token={server.token}", Host=host)[0] == 403


def test_two_names_are_refused(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.server_port)) as wire:
        words = f"GET /data?token={server.token} HTTP/1.0\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"
        wire.sendall(words.encode())
        assert wire.makefile().readline().split()[1] == "403"


@pytest.mark.parametrize(
    "path",
    [
        "/run.json",
        "/metrics.csv",
        "/checkpoints/0000005.npz",
        "/data/",
        "/../../etc/passwd",
        "/%2e%2e/run.json",
    ],
)
def test_no_file_is_served(server: Server, path: str) -> None:
    assert ask(server, f"{path}?token={server.token}")[0] == 404
    assert ask(server, f"http://[?token={server.token}")[0] == 400


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS"])
def test_only_questions_are_answered(server: Server, method: str) -> None:
    assert ask(server, f"/data?token={server.token}", method)[0] == 501


def test_only_this_machine_can_ask(server: Server) -> None:
    assert server.socket.getsockname()[0] == "127.0.0.1"
    with socket.socket() as other:  # were it listening everywhere, this would be taken
        other.bind(("127.0.0.2", server.server_port))


def test_the_page_fetches_nothing_from_elsewhere(server: Server) -> None:
    status, headers, text = ask(server, f"/?token={server.token}")
    assert status == 200
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:)|url\(|@import|https?:|//\w+\.""", text)
    nonce = re.search(r'<script nonce="([\w-]{20,})">', text)[1]
    policy = headers["Content-Security-Policy"]
    assert f"default-src 'none'; script-src 'nonce-{nonce}';" in policy
    assert "connect-src 'self'" in policy
    assert nonce not in ask(server, f"/?token={server.token}")[2]
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert server.token not in text


def test_a_taken_port(trained: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=f"Port {server.server_port} cannot be used: .*Choose another --port"):
        Server(trained, server.server_port)
    monkeypatch.setattr("etd.lab.live.serve.PORT", server.server_port)
    with Server(trained) as next_one:
        assert server.server_port < next_one.server_port < server.server_port + 50
    monkeypatch.setattr("etd.lab.live.serve.TRIED", 1)
    with pytest.raises(UserError, match="are taken"):
        Server(trained)
    with pytest.raises(UserError, match="There is no port 70000"):
        Server(trained, 70000)


def test_mistakes_get_a_sentence(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "JAX_PLATFORMS", os.environ.get("JAX_PLATFORMS", "cpu")
    )  # else the command sets it for all tests
    (tmp_path / "file").write_text("")
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "agent.json").write_text("{}")
    for words, said in (
        (["--live", str(trained), "--out", "film.gif"], "--live films nothing"),
        (["--live", str(trained), "--greedy"], "--live films nothing"),
        ([str(trained), "--port", "8000"], "--port is for --live"),
        (["--live", str(trained), "--seed", "9"], "has no seed 9; it has seeds 3 to 4"),
        (["--live", str(tmp_path / "file")], "is a file, not a run"),
        (["--live", str(tmp_path / "agent")], "is an exported agent"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(["watch", *words])
        assert stop.value.code == 2
        assert said in capsys.readouterr().err


def test_the_gpu_is_left_to_the_training(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "")  # restored in the end
    for given, used in ((None, "cpu"), ("cuda", "cuda")):
        monkeypatch.delenv("JAX_PLATFORMS")
        if given:
            monkeypatch.setenv("JAX_PLATFORMS", given)
        with pytest.raises(SystemExit):
            main(["watch", "--live", str(trained), "--seed", "9"])
        assert os.environ["JAX_PLATFORMS"] == used


# What it says ----------------------------------------------------------------------------------------------------


def test_the_numbers_are_the_runs_own(logged) -> None:
    wall = np.array([60.0, 64.0, 68.0, 72.0])
    run = logged(GROWING, wall=wall, episodes=np.array([[1, 20, 30, 40]] * 2), bonus_mean=2 * GROWING)
    with serving(run.path) as server:
        said = data(server)
    assert (said["step"], said["steps"]) == (40_00, 500_000)
    assert said["speed"] == 1000 * 2 / 4
    assert said["left"] == (500 - 4) * 4
    assert said["wall"] == 72
    first, _, third = said["curves"]
    assert [curve["name"] for curve in said["curves"]] == ["return", "success", "bonus_mean"]
    assert first["steps"] == [1000, 2000, 3000, 4000]
    assert first["lines"] == [[None, 0.2, 0.3, 0.4], [None, 0.4, 0.6, 0.8]]  # too few episodes at first
    np.testing.assert_allclose(np.array(first["mean"][1:], float), GROWING.mean(0)[1:])
    assert third["lines"] == (2 * GROWING).tolist()
    assert [row["return"] for row in said["seeds"]] == [0.4, 0.8]
    assert not said["flaws"]


def test_much_is_thinned(logged) -> None:
    run = logged(np.tile(np.linspace(0, 1, 400), (LINES + 5, 1)))
    said = Follower(run.path).data()
    for curve in said["curves"]:
        assert len(curve["steps"]) == len(curve["mean"]) == POINTS
        assert (curve["steps"][-1], len(curve["lines"])) == (400_000, LINES)
    assert len(json.dumps(said)) < 200_000
    assert (len(said["seeds"]), said["others"]) == (LINES, 5)


def test_a_run_from_before_its_beginning_to_its_end(tmp_path: Path, logged) -> None:
    follower = Follower(tmp_path / "later")
    assert follower.data()["state"] == "not begun"
    assert "There is no run in" in follower.data()["words"]
    experiment = presets.choose("MiniGrid-Empty-5x5-v0", "none")
    run = Run.create(tmp_path / "later", experiment)
    assert follower.data()["state"] == "not begun"
    with claim(run.path):
        assert follower.data()["state"] in ("starting", "not begun")  # where the system lists no locks
    row = {"iteration": 1, "seed": 0, "step": 8192, "return": 0.0, "alive": 1, "wall": 9.0}
    with claim(run.path):
        run.log([row])
        assert follower.data()["state"] == "running"
        assert follower.data()["step"] == 8192
    run.log([{**row, "iteration": experiment.iterations, "step": experiment.iterations * 8192}])
    assert follower.data()["state"] == "finished"


def test_a_killed_process_is_told_at_once_and_so_is_its_successor(logged) -> None:
    if not Path("/proc/locks").exists():
        pytest.skip("this system lists no locks")
    run = logged(GROWING)
    follower = Follower(run.path)
    with claim(run.path):
        assert follower.data()["state"] == "running"
    stopped = follower.data()
    assert stopped["state"] == "stopped"
    assert stopped["touched"] == pytest.approx(run.metrics_file.stat().st_mtime, abs=0.2)
    with claim(run.path):
        run.rewind(2)
        again = follower.data()
    assert (again["state"], again["step"]) == ("running", 2000)
    assert again["curves"][0]["steps"] == [1000, 2000]


def test_damage_is_told_and_survived(logged) -> None:
    run = logged(GROWING)
    whole = run.metrics_file.read_bytes()
    follower = Follower(run.path)
    run.metrics_file.write_bytes(whole[:-7])  # half a row, as while it is written
    said = follower.data()
    assert [row["iteration"] for row in said["seeds"]] == [4, 3]
    assert not said["flaws"]
    run.metrics_file.write_bytes(b"")
    assert follower.data()["curves"] == []
    lines = whole.splitlines(keepends=True)
    run.metrics_file.write_bytes(b"".join([*lines[:3], b"\xff\x00 no row\n", *lines[5:]]))
    said = follower.data()
    assert "1 line cannot be read, rows of iterations 2 are missing" in said["flaws"]
    record = (run.path / "run.json").read_bytes()
    (run.path / "run.json").write_bytes(record[:100])
    said = follower.data()
    assert said["state"] == "unreadable"
    assert "run.json cannot be used" in said["words"]
    (run.path / "run.json").write_bytes(record)
    run.metrics_file.write_bytes(whole)
    assert follower.data()["step"] == 4000


def test_looking_leaves_no_trace(trained: Path) -> None:
    def traces() -> dict[str, tuple[int, int, int]]:
        return {
            str(file): (file.stat().st_mtime_ns, file.stat().st_ctime_ns, file.stat().st_size)
            for file in [trained, *trained.rglob("*")]
        }

    before = traces()
    with serving(trained) as server:
        data(server)
        with claim(trained):  # the lock is free, too
            data(server)
        for address in ("/", "/map"):
            assert ask(server, f"{address}?token={server.token}")[0] == 200
        assert level.draw(trained)["distance"]
    assert traces() == before


# The map ---------------------------------------------------------------------------------------------------------


def test_the_bonus_of_a_cell_is_that_of_reaching_it(trained: Path, quick) -> None:
    """min_k d(s_k, cell) over the states s_k of the running episode, as the checkpoint has them."""
    run, state = session.load(trained)
    found = level.draw(trained, seed=4)
    assert (found["seed"], found["step"]) == (4, 320)
    bonus, distance = (np.array(found[name], float) for name in ("bonus", "distance"))
    room = np.zeros((5, 5), bool)
    room[1:4, 1:4] = True
    np.testing.assert_array_equal(np.isfinite(bonus), room)
    np.testing.assert_array_equal(np.isfinite(distance), room)
    own = jax.tree.map(lambda leaf: leaf[1], state.learner.bonus)
    world = jax.tree.map(lambda leaf: leaf[1, 0], state.envs.now.state)
    assert found["place"] == [int(world.y), int(world.x)]
    env, net = run.experiment.env.make(), own.learner.net()
    seen = int(own.memory.filled[0])
    assert found["seen"] == seen > 1
    rows, columns = np.nonzero(room)

    @quick
    def nearest(past: jax.Array) -> jax.Array:
        views = jax.vmap(lambda y, x: env.observe(world._replace(x=x, y=y)))(jnp.asarray(rows), jnp.asarray(columns))
        return run.experiment.bonus.distance(net.encode(past), net.encode(net.trunk(views))).min(0)

    np.testing.assert_allclose(bonus[room], nearest(own.memory.values[0, :seen]), atol=1e-3)


def test_an_episode_that_has_just_begun_has_seen_the_present(trained: Path) -> None:
    run, state = session.load(trained)
    own = jax.tree.map(lambda leaf: leaf[0], state.learner.bonus)
    world = jax.device_get(jax.tree.map(lambda leaf: leaf[0, 0], state.envs.now.state))
    memory = jax.tree.map(lambda leaf: leaf[0], own.memory)._replace(filled=jnp.int32(0))
    found = distance_map.present(run.experiment.env.make(), run.experiment.bonus, own.learner, memory, world)
    np.testing.assert_allclose(found.bonus, found.distance, atol=1e-4)


def test_a_run_without_distances_gets_a_sentence(logged) -> None:
    run = logged(GROWING, bonus="rnd")
    with pytest.raises(UserError, match="bonus is rnd, which learns no distance"):
        level.draw(run.path)
    maps = level.Maps(run.path)
    assert not maps._update()  # there is no checkpoint
    (run.path / "checkpoints" / "0000001.npz").write_bytes(b"")
    assert maps._update()
    assert "learns no distance" in maps.latest["words"]
    assert not maps._update()  # it is drawn already


# In a browser ----------------------------------------------------------------------------------------------------

STATE = "document.getElementById('state').textContent"
HAS = "document.querySelectorAll('#curves polyline.seed').length"
STEP = "+document.querySelector('#seeds td').textContent.replaceAll(',', '')"


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_a_browser_follows_a_training_that_is_killed_and_resumed(tmp_path: Path, trained: Path) -> None:
    """The page is opened before there is a run, and never loaded again."""
    path = tmp_path / "<b>run"
    quick = {"JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir, **QUICK_VARIABLES}
    quick["ETD_SAVE_EVERY"] = "1"
    viewer = command("watch", "--live", str(path), "--port", "0", **quick, PYTHONUNBUFFERED="1")
    trainer: subprocess.Popen | None = None
    try:
        said = viewer.stdout.readline().decode()
        address = re.search(r"http://\S+", said)[0]
        port = int(re.search(r":(\d+)/", address)[1])
        assert f"ssh -L {port}:localhost:{port} " in viewer.stdout.readline().decode()
        with Browser(tmp_path / "profile") as browser:
            browser.open(address)
            browser.wait(f"{STATE}.startsWith('There is no run in')")
            trainer = start(path, 10_000_000, ETD_SAVE_EVERY="1")
            browser.wait(f"{STATE} === 'Running'")
            browser.wait(f"{HAS} >= 4")
            assert browser.ask("document.querySelector('h1').textContent") == "<b>run"
            assert browser.ask("document.querySelectorAll('#seeds tbody tr').length") == 2
            assert "steps/s" in browser.ask("document.getElementById('facts').textContent")
            browser.wait("document.querySelector('#bonus').dataset.cells === '9'")
            assert browser.ask("document.querySelector('#level').naturalWidth") > 50
            before = browser.wait(STEP)
            browser.wait(f"{STEP} > {before}")

            trainer.kill()
            trainer.communicate(timeout=60)
            browser.wait(f"{STATE}.startsWith('Not running since')")
            assert f"etd resume {path}" in browser.ask(STATE)
            stopped = browser.ask(STEP)

            trainer = command("resume", str(path), **quick)
            browser.wait(f"{STATE} === 'Running' && {STEP} > {stopped}")
            trainer.send_signal(signal.SIGTERM)
            trainer.communicate(timeout=60)
            browser.wait(f"{STATE}.startsWith('Not running since')")
            assert browser.ask("document.documentElement.scrollWidth") <= 1200

            viewer.send_signal(signal.SIGINT)
            rest = viewer.communicate(timeout=60)[0].decode()
            assert viewer.returncode == 0, rest
            assert rest.strip() == "The live view has ended; the training goes on."
            browser.wait(f"{STATE}.startsWith('No answer since')")
            assert browser.errors() == []
            assert {url.split("?")[0] for url in browser.requested()} <= {
                f"http://127.0.0.1:{port}/{name}" for name in ("", "data", "map")
            } | {url for url in browser.requested() if url.startswith("data:")}
    finally:
        for process in filter(None, (viewer, trainer)):
            process.kill()
            process.communicate()


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
@pytest.mark.parametrize(("width", "dark"), [(1200, False), (400, True)])
def test_the_page_fits(logged, tmp_path: Path, width: int, dark: bool) -> None:
    run = logged(np.random.default_rng(0).random((5, 30)), env="MiniGrid-ObstructedMaze-2Dlh-v0", bonus="etd + 0.5*rnd")
    with serving(run.path) as server, Browser(tmp_path / "profile", width, 900, dark) as browser:
        browser.open(server.address)
        browser.wait(f"{HAS} >= 10")
        assert browser.ask("document.documentElement.scrollWidth") <= width
        ground = browser.ask("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(20, 22, 26)") == dark
        assert browser.ask("[...document.querySelectorAll('#curves svg')].every(svg => svg.clientWidth > 300)")
        assert browser.errors() == []
