"""What is read out of a Dockerfile: what builds it, what the engine would fetch, and what it begins from."""

from __future__ import annotations

import pytest

from tbench.sandbox.docker.dockerfile import base_images, fetches_by_itself, needs_buildkit, why_not_closed

BASE = "FROM debian\n"


@pytest.mark.parametrize(
    "steps",
    [
        "RUN <<EOF\nls\nEOF\n",
        "copy <<-'EOF' /x\ny\nEOF\n",
        "RUN --mount=type=cache,target=/c ls\n",
        "COPY --from=x --chmod=755 a /\n",
        "COPY --from=a --chmod=755 x /x\n",
        "ADD --link x /x\n",
    ],
)
def test_heredocs_mounts_and_modes_need_buildkit(steps: str) -> None:
    assert needs_buildkit(BASE + steps)
    assert "BuildKit" in str(why_not_closed(BASE + steps))


@pytest.mark.parametrize(
    "steps",
    [
        "COPY . /app\nADD files.tar.gz /app\nADD --chown=1000:1000 a b /srv/\n",
        'ADD ["one", "two", "/there/"]\n',
        "RUN echo ADD http://host/x /y\nRUN add-apt-repository \\\n  ppa:somebody/else\n",
        "RUN one && \\\n  # ADD http://host/ would be a comment\n\n  two\n",
        "RUN curl http://host/x\nENV ADD=http://host/\n",
        "RUN printf '\\\\'\nUSER nobody\n",
    ],
)
def test_what_only_steps_fetch_can_be_closed(steps: str) -> None:
    assert why_not_closed(BASE + steps) is None


@pytest.mark.parametrize(
    "steps",
    [
        "ADD http://host/x /y\n",
        "  add\thttps://host/x /y\n",
        "ADD --chown=1:1 --checksum=x http://host/x /y\n",
        "A\\\nDD \\\n# a comment\n\n  http://host/x /y\n",
        'ADD ["http:\\u002f/host/x", "/y"]\n',
        'ADD ["\\u0068ttp\\u003a//host/x", "/y"]\n',
        "ARG URL\nADD $URL /y\n",
        'ADD http:""//host/x /y\n',
        "ONBUILD ADD http://host/x /y\n",
        "RUN echo '\\\\\nADD http://host/x /y\n",
        "RUN echo \\\n  # to old engines no comment\nADD http://host/x /y\n",
        "RUN echo \\\n# a comment to all \\\n  end\r\nADD http://host/x /y\r\n",
        "ADD git@github.com:somebody/else.git /y\n",
    ],
)
def test_what_may_be_a_url_to_the_engine_is_found_in_any_disguise(steps: str) -> None:
    assert "the engine itself" in str(why_not_closed(BASE + steps))


def test_another_escape_character_is_not_read() -> None:
    assert "escape" in str(why_not_closed("# Escape = `\nFROM debian\nA`\nDD http://host/x /y\n"))


def test_the_first_instruction_that_fetches_is_named() -> None:
    assert fetches_by_itself(["RUN true", "ADD http://a/ /", "ADD http://b/ /"]) == "ADD http://a/ /"
    assert fetches_by_itself(["RUN true", "ADD a /"]) is None


@pytest.mark.parametrize(
    ("dockerfile", "names"),
    [
        ("FROM debian:12\n", {"debian:12"}),
        ("\ufefffrom --platform=linux/amd64 a/b@sha256:00 as One\nFROM one\nFROM scratch\n", {"a/b@sha256:00"}),
        ("ARG TAG=12 OTHER='13'\nFROM debian:${TAG}\nFROM debian:$OTHER AS x\n", {"debian:12", "debian:13"}),
        ("ARG TAG=12\nFROM debian\nARG TAG=13\nFROM debian:$TAG\n", {"debian", "debian:12"}),
        ("ARG TAG=12\nARG TAG\nFROM debian$TAG\n", {None}),
        ("FROM debian:${TAG:-12}\n", {None}),
        ('FROM "debian"\n', {None}),
        ("ARG A=x\nARG B=$A\nFROM $B\n", {None}),
        ("RUN x \\\n  # old\nFROM one\nFROM two\n", {"one", "two"}),
    ],
)
def test_the_images_that_stages_begin_from_are_told_or_said_to_be_unknown(
    dockerfile: str, names: set[str | None]
) -> None:
    assert base_images(dockerfile) == names
    assert (why_not_closed(dockerfile) is None) == (None not in names)
