from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from etd.core.errors import UserError
from etd.envs import Task, autoreset, ids, maze
from etd.envs.maze import MAZES, Maze, parse, transitions
from etd.nets.trunks import Trunk

RED, WHITE = (1, 0, 0), (1, 1, 1)
WALLS = {"black": (0, 0, 0), "blue": (0, 0, 1), "green": (0, 1, 0), "cyan": (0, 1, 1)}
ARROWS = {"^": (-1, 0), "v": (1, 0), "<": (0, -1), ">": (0, 1)}
# Open at the edge; every conveyor, one against a wall, one out of the maze, one against another.
ODD = "<.>#\n.v<.\n..^<\n.#^."


def lines(text):
    return text.strip().split("\n")


def moved(rows, row, column, action):
    """The rules again, in plain Python."""
    down, right = ARROWS.get(rows[row][column], [(-1, 0), (1, 0), (0, -1), (0, 1)][action])
    to = row + down, column + right
    if not (0 <= to[0] < len(rows) and 0 <= to[1] < len(rows[0])) or rows[to[0]][to[1]] == "#":
        return row, column
    return to


def seen(rows, at):
    return np.array(
        [
            [RED if (r, c) == at else (0, 0, 0) if letter == "#" else WHITE for c, letter in enumerate(line)]
            for r, line in enumerate(rows)
        ]
    )


@pytest.mark.parametrize("text", [ODD, *(text for text, _ in MAZES.values())], ids=["odd", *MAZES])
def test_tables_follow_the_rules(text):
    rows, (cells, matrix) = lines(text), transitions(Maze(text))
    assert cells == [(r, c) for r, line in enumerate(rows) for c, letter in enumerate(line) if letter != "#"]
    expected = np.zeros((len(cells), 4, len(cells)))
    for state, (row, column) in enumerate(cells):
        for action in range(4):
            expected[state, action, cells.index(moved(rows, row, column, action))] = 1
    np.testing.assert_array_equal(matrix, expected)


def test_walks_are_those_of_plain_python(quick, rng):
    """Random walks, several episodes each, in a maze with conveyors and a goal on the way."""
    text, _ = MAZES["OneWay"]
    rows, env, key = lines(text), Maze(text, goal=(1, 1), length=20), jax.random.key(1)
    steps, envs = 60, 8
    actions = rng.integers(4, size=(steps, envs))

    @quick
    def walk(actions):
        now = autoreset.begin(env, key, envs)
        pool = autoreset.generate(env, key, now, autoreset.pool_size(env.spec, steps))

        def one(now, action):
            after, transition = autoreset.step(env, pool, now, action, key)
            return after, (now.now, transition)

        return jax.lax.scan(one, now, actions)[1]

    before, step = jax.device_get(walk(actions))
    rewarded = 0
    for n in range(envs):
        at = env.cells[before.state.cell[0, n]]
        for t in range(steps):
            np.testing.assert_array_equal(before.obs[t, n], seen(rows, at))
            at = moved(rows, *at, actions[t, n])
            np.testing.assert_array_equal(step.next_obs[t, n], seen(rows, at))
            assert env.cells[step.fingerprint[t, n]] == at
            assert step.reward[t, n] == (at == (1, 1))
            assert not step.terminated[t, n]
            assert step.truncated[t, n] == (t % 20 == 19)
            rewarded += at == (1, 1)
            if t % 20 == 19 and t + 1 < steps:
                at = env.cells[before.state.cell[t + 1, n]]
    assert rewarded
    assert step.next_obs.dtype == np.float32


def test_starts_are_uniform_or_given(quick):
    env = Maze("....\n.##.\n..#v")
    keys = jax.random.split(jax.random.key(0), 6000)
    place, _ = quick(jax.vmap(env.reset))(keys)
    counts = np.bincount(place.cell, minlength=9)
    assert counts.size == 9
    np.testing.assert_allclose(counts, 6000 / 9, atol=5 * np.sqrt(6000 / 9))  # 5 standard deviations
    assert (np.asarray(place.time) == 0).all()
    place, obs = quick(jax.vmap(replace(env, start=(2, 1)).reset))(keys[:2])
    assert [env.cells[cell] for cell in np.asarray(place.cell)] == [(2, 1)] * 2
    np.testing.assert_array_equal(obs[1], seen(lines(env.text), (2, 1)))


def test_walls_take_four_colours_equally_and_afresh(quick):
    text, goal = MAZES["Spiral"]
    clean, noisy = (Maze(text, goal, noise=noise) for noise in (False, True))
    keys = jax.random.split(jax.random.key(0), 64)

    def play(env):
        state, first = jax.vmap(env.reset)(keys)
        after, step = jax.vmap(env.step)(state, jnp.arange(64) % 4, jax.random.split(jax.random.key(1), 64))
        return first, after, step

    (first, after, step), (first_n, after_n, step_n) = jax.device_get(quick(lambda: (play(clean), play(noisy)))())
    jax.tree.map(np.testing.assert_array_equal, after, after_n)
    np.testing.assert_array_equal(step.reward, step_n.reward)
    walls = clean.index < 0
    np.testing.assert_array_equal(first[:, ~walls], first_n[:, ~walls])
    np.testing.assert_array_equal(step.next_obs[:, ~walls], step_n.next_obs[:, ~walls])
    drawn = np.stack([first_n[:, walls], step_n.next_obs[:, walls]])  # [2, 64, walls, 3]
    colours = np.stack([(drawn == colour).all(-1) for colour in WALLS.values()])
    assert (colours.sum(0) == 1).all()
    draws = walls.sum() * 128
    spread = 5 * np.sqrt(draws * 3 / 16)
    np.testing.assert_allclose(colours.sum((1, 2, 3)), draws / 4, atol=spread)
    code = colours.argmax(0)
    # Independent over time, environments and cells: two draws agree a quarter of the time.
    for a, b in ((code[0], code[1]), (code[:, 1:], code[:, :-1]), (code[..., 1:], code[..., :-1])):
        assert abs((a == b).mean() - 1 / 4) < 5 * np.sqrt(3 / 16 / a.size)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Line 1, column 1: the maze is empty"),
        (" \n\n", "Line 1, column 1: the maze is empty"),
        ("###\n#.#\n##", "Line 3, column 3: line 1 has 3 characters, this line has 2"),
        ("\n\n###\n#.##\n###", "Line 4, column 4: line 3 has 3 characters, this line has 4"),
        ("###\n\n###", "Line 2, column 1: line 1 has 3"),
        ("###\n#x#\n###", "Line 2, column 2: 'x' is not a maze symbol"),
        ("###\n#. \n###", "Line 2, column 3: ' ' is not a maze symbol"),
        ("###\n#.#\n###\t", r"Line 3, column 4: '\\t' is not a maze symbol"),
        ("##\n##\n##", "Line 1, column 1 to line 3, column 2: only walls"),
        ("#####\n#.#.#\n#.###\n#####", "Line 2, column 4: this cell and the one at line 2, column 2 are not"),
        ("#####\n#.#.#\n###.#\n#####", "Line 2, column 2: this cell and the one at line 2, column 4 are not"),
        ("\n.<>.", "Line 2, column 3: this cell and the one at line 2, column 1 are not"),
    ],
)
def test_a_bad_text_is_refused_by_line_and_column(text, words):
    with pytest.raises(UserError, match=words):
        parse(text)


def test_what_conveyors_join_is_one_piece():
    assert parse(".>.") == (".>.",)
    assert parse("\r\n##\r\n#.\r\n") == ("##", "#.")
    assert parse("><") == ("><",)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"start": (0, 2)}, r"start \(0, 2\), line 1, column 3, is a wall"),
        ({"goal": (1, 0)}, r"goal \(1, 0\), line 2, column 1, is a wall"),
        ({"start": (1, 3)}, "outside the maze of 3 lines and 3 columns"),
        ({"start": (-1, 1)}, "outside"),
        ({"length": 0}, "cannot take 0 steps"),
    ],
)
def test_a_bad_maze_is_refused(fields, words):
    with pytest.raises(UserError, match=words):
        Maze("###\n#.#\n###", **fields)


def test_named_mazes_are_tasks():
    assert set(maze.IDS) <= set(ids())
    sizes = {"Spiral": (17, 17), "Interlocked": (21, 29), "Hard": (16, 16), "HardSmall": (16, 16), "OneWay": (11, 13)}
    for name, size in sizes.items():
        for end in ("", "-Noisy"):
            env = Task(f"Maze-{name}{end}-v0").make()
            assert env == maze.make(f"Maze-{name}{end}-v0")
            assert hash(env) == hash(maze.make(f"Maze-{name}{end}-v0"))
            assert (env.noise, env.goal, env.length) == (bool(end), MAZES[name][1], 50)
            assert env.spec.obs_shape == (*size, 3)
            assert env.spec.name == f"Maze-{name}{end}-v0"
    with pytest.raises(UserError, match="Maze-Spiral-v0"):
        Task("Maze-Spirl-v0").make()
    with pytest.raises(UserError, match="MiniGrid"):
        Task("Maze-Spiral-v0", view_size=5).make()


def test_a_network_fits():
    spec = Task("Maze-OneWay-Noisy-v0", noise=0.1).make().spec
    out = jax.eval_shape(lambda: Trunk().build(spec, 8, "layer")(jnp.zeros((2, *spec.obs_shape))))
    assert out.shape == (2, 8)


def test_a_picture_shows_walls_goal_conveyors_and_agent():
    env = Maze("#.>\n#.#", goal=(1, 1), start=(0, 1))
    picture = env.render(jax.device_get(env.reset(jax.random.key(0))[0]))
    assert picture.shape == (2 * maze.TILE, 3 * maze.TILE, 3)
    assert picture.dtype == np.uint8
    tiles = picture.reshape(2, maze.TILE, 3, maze.TILE, 3).swapaxes(1, 2)
    colours = [[{tuple(pixel) for pixel in tile.reshape(-1, 3).tolist()} for tile in row] for row in tiles]
    wall, red, green, white = (40, 44, 52), (220, 40, 40), (95, 211, 141), (255, 255, 255)
    assert colours[0][0] == colours[1][0] == colours[1][2] == {wall}
    assert colours[0][1] == {white, red}
    assert colours[1][1] == {green}
    arrow = (tiles[0, 2] != 255).any(-1)
    # Mirrored top to bottom, and its tip at the right: columns get shorter.
    np.testing.assert_array_equal(arrow, arrow[::-1])
    heights = arrow.sum(0)[arrow.any(0)]
    assert arrow.any()
    assert (np.diff(heights) <= 0).all()
    assert heights[0] > heights[-1]
