"""Reading of a Dockerfile: its builder, remote files, and base images."""

from __future__ import annotations

import pytest

from tbench.sandbox.dockerfile import (
    base_images,
    directive,
    find_remote_add,
    heredoc_around,
    needs_buildkit,
    network_bypass,
    platform_args,
    without_syntax,
)

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
        "RUN cat << 'EOF' > /x\n$y\nEOF\n",
        "RUN one && \\\n  # a comment\n  cat <<-EOF >/x && \\\n  two\n\tEOF\n",
        "ONBUILD RUN 3<<E'O'F cat\nx\nEOF\n",
        'RUN <<A <<"B C" cat\n1\nA\n2\nB C\n',
        "RUN echo $(cat <<EOF)\nx\nEOF)\n",
    ],
)
def test_heredocs_mounts_and_modes_need_buildkit(steps: str) -> None:
    assert needs_buildkit(BASE + steps)
    assert "BuildKit" in str(network_bypass(BASE + steps))


@pytest.mark.parametrize(
    "steps",
    [
        "RUN echo $((1<<2)) $(( 1 << 2 ))\n",
        "RUN cat <<<word\nword\n",
        "RUN bash -c 'cat <<EOF'\nEOF\n",
        'RUN echo "<<EOF" \\<<EOF\nEOF\n',
        'RUN ["cat", "<<EOF"]\nEOF\n',
        "ENV A=<<EOF\nEOF\n",
        "RUN cat <<EOF\n  EOF\n EOF \n",
        "RUN # <<EOF \\\nEOF\n",
    ],
)
def test_what_is_no_heredoc_to_docker_needs_nothing(steps: str) -> None:
    assert needs_buildkit(BASE + steps) is None


def test_what_needs_buildkit_is_named_with_its_line() -> None:
    assert needs_buildkit("# one\nFROM a\n\nRUN a && \\\n cat << EOF\nEOF\n") == "the heredoc EOF in line 4"
    assert needs_buildkit("FROM a\nRUN --network=none --mount=type=tmpfs,target=/x ls\n") == "--mount in line 2"
    assert needs_buildkit("FROM --platform=$BUILDPLATFORM a\n") == "$BUILDPLATFORM without ARG in line 1"
    assert needs_buildkit("ARG BUILDPLATFORM\nFROM --platform=$BUILDPLATFORM a\n") is None


def test_the_heredoc_around_a_line_is_found() -> None:
    dockerfile = "# escape=`\nFROM a\nRUN x `\n <<ONE\n1\nFROM b\nONE\nRUN <<TWO\n2\nTWO\n"
    found = {line: heredoc_around(dockerfile, line) for line in (3, 4, 5, 7, 8, 9, None)}
    one, two = "the heredoc ONE in line 3", "the heredoc TWO in line 8"
    assert found == {3: None, 4: None, 5: one, 7: one, 8: None, 9: two, None: one}
    assert base_images(dockerfile) == {"a"}, "what a heredoc holds is no instruction"


@pytest.mark.parametrize(
    ("dockerfile", "names"),
    [
        ("ARG TARGETARCH\nFROM a\narg TARGETOS BUILDPLATFORM\n", {"TARGETARCH", "TARGETOS", "BUILDPLATFORM"}),
        ("FROM a\nARG TARGETARCH=mips OTHER\nRUN echo ARG TARGETOS $TARGETPLATFORM\n", set()),
    ],
)
def test_variables_of_the_platform_are_those_that_are_declared_without_a_value(
    dockerfile: str, names: set[str]
) -> None:
    assert platform_args(dockerfile) == names


def test_directives_are_those_at_the_very_top() -> None:
    dockerfile = "\ufeff# syntax = docker/dockerfile:1 \n#escape=`\nFROM a\n# syntax=b\n"
    assert (directive(dockerfile, "syntax"), directive(dockerfile, "escape")) == ("docker/dockerfile:1", "`")
    assert without_syntax(dockerfile) == "#escape=`\n\nFROM a\n# syntax=b\n"
    for other in ("\n# syntax=b\n", "# about\n# syntax=b\n", "FROM a\n# syntax=b"):
        assert (directive(other, "syntax"), without_syntax(other)) == (None, other)


def test_a_build_may_give_the_image_that_it_begins_from() -> None:
    assert base_images("ARG BASE\nARG TAG=1\nFROM $BASE:$TAG\n", {"BASE": "a/b", "TAG": "2"}) == {"a/b:2"}


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
    assert network_bypass(BASE + steps) is None


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
    assert "the engine itself" in str(network_bypass(BASE + steps))


def test_another_escape_character_is_not_read() -> None:
    assert "escape" in str(network_bypass("# Escape = `\nFROM debian\nA`\nDD http://host/x /y\n"))


def test_the_first_instruction_that_fetches_is_named() -> None:
    assert find_remote_add(["RUN true", "ADD http://a/ /", "ADD http://b/ /"]) == "ADD http://a/ /"
    assert find_remote_add(["RUN true", "ADD a /"]) is None


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
    assert (network_bypass(dockerfile) is None) == (None not in names)
