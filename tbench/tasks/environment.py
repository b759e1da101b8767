"""What the sandboxes of a task are made of, apart from what the task asks of whoever works in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tbench.compose.project import COMPOSE_FILE, IMAGE_OF_MAIN, MAIN, ImageBuild, Project, Service
from tbench.errors import TrialError
from tbench.tasks.format import EnvironmentSection, TaskFile
from tbench.tasks.network import Networks
from tbench.tasks.task import Task

Role = Literal["agent", "verifier"]
"""Who works in a sandbox."""
_OF_THE_FOLDER = ImageBuild(".")


@dataclass(frozen=True)
class Environment:
    """What one kind of sandbox is made of: an image or the folder to build it of, limits, network and variables."""

    task: Task
    """The task that it belongs to, whose hash and consent are its own."""
    settings: EnvironmentSection
    role: Role = "agent"
    folder: str = "environment"
    """The build context: a folder of the task, by relative path."""
    user: str | None = None
    """Who works there where nobody else is named; None for the image's own user."""
    service: str = MAIN
    """Which of its containers this is about, by the name in its compose file."""
    build: ImageBuild | None = _OF_THE_FOLDER
    """How the image is built, its context relative to the folder; None for one that is only pulled."""
    brings_tests: bool = False
    """Whether its image has the tests, at /tests: then nothing is staged there."""

    @property
    def name(self) -> str:
        """Name in messages, and of images and their logs; that of the agent's container is the task's."""
        of_what: list[str] = [] if self.role == "agent" else [self.role]
        if self.role == "verifier" and self.task.step is not None:
            of_what.append(f"step {self.task.step.name}")
        if self.service != MAIN:
            of_what.append(self.service)
        return f"{self.task.name} ({', '.join(of_what)})" if of_what else self.task.name

    @property
    def image_name(self) -> str:
        """Name of what is built of the context: the same for all that are made of one folder."""
        of_what = (
            *(() if self.folder == "environment" else (self.folder,)),
            *(() if self.service == MAIN else (self.service,)),
        )
        return "-".join((self.task.name, *of_what))

    @property
    def path(self) -> Path:
        """Directory of the build context."""
        folder = self.task.path / self.folder
        return folder if self.build is None else folder / self.build.context

    def context_paths(self) -> list[Path]:
        """What a build gets of the context, in order: what the task's hash names of it; all of a context elsewhere."""
        if not self.path.is_relative_to(self.task.path / self.folder):
            return sorted(self.path.rglob("*"))
        return self.task.context(self.path.relative_to(self.task.path).as_posix())

    @property
    def dockerfile(self) -> Path:
        """Path of its Dockerfile, which need not exist where an image is named."""
        return self.path / ((self.build and self.build.dockerfile) or "Dockerfile")

    @property
    def can_be_built(self) -> bool:
        """Whether there is a Dockerfile to build the image of."""
        return self.build is not None and (self.build.inline is not None or self.dockerfile.is_file())

    @property
    def project(self) -> Project | None:
        """The services of its compose file; None for a single container.

        Raises TaskInvalid, and TrialError: env_missing where it lacks a variable, trust_missing, task_unsupported.
        """
        services = self.task.services_of(self.folder, self.settings)
        if services is None:
            return None
        file = self.task.path / self.folder / COMPOSE_FILE
        if services.missing or services.project is None:
            names = ", ".join(sorted({asked.name for asked in services.missing}))
            raise TrialError("env_missing", f"{file}: asks for {names}, which --allow-env gives where it is set")
        if services.unsupported:
            raise TrialError("task_unsupported", f"{file}: {', '.join(services.unsupported)}")
        if services.host_access and not self.task.may_use_host:
            raise TrialError("trust_missing", f"{file}: {'; '.join(services.host_access)}; --trust allows it")
        return services.project

    def containers(self) -> Iterator[Environment]:
        """What each of its containers is made of, that of the agent or the verifier first. Raises as `project` does."""
        project = self.project
        if project is None:
            yield self
            return
        yield self.of_service(project.main)
        yield from (self.of_service(sidecar) for sidecar in project.sidecars)

    def of_service(self, service: Service) -> Environment:
        """What the container of one service is made of."""
        if service.name == MAIN:
            given = {"docker_image": self._image_of_main(service), **service.limits}
            settings = self.settings.model_copy(update=given)
            return replace(self, settings=settings, build=service.build or self.build)
        is_as_main = service.build is None and service.image == IMAGE_OF_MAIN
        main = self.of_service(self.project.main) if is_as_main and self.project is not None else None
        published = service.image if service.build is None else None
        # A service whose file names no limits has those of a task that names none.
        settings = EnvironmentSection(
            build_timeout_sec=self.settings.build_timeout_sec,
            docker_image=published if main is None else main.settings.docker_image,
        ).model_copy(update=service.limits)
        build = service.build if main is None else main.build
        return replace(self, settings=settings, service=service.name, build=build, user=None)

    def _image_of_main(self, service: Service) -> str | None:
        """The image that `main` is made of where it is not built."""
        own = None if service.build or service.image == IMAGE_OF_MAIN else service.image
        # Where it is built, that is only the name which the image gets.
        return own if own and (self.settings.docker_image or not self.can_be_built) else self.settings.docker_image

    @property
    def cpus(self) -> float:
        """The cpus of all its containers together."""
        return sum(each.settings.cpus for each in self.known_containers())

    @property
    def memory_mb(self) -> float:
        """The memory of all its containers together."""
        return sum(each.settings.memory_mb for each in self.known_containers())

    @property
    def main_memory_mb(self) -> float:
        """The memory of the container in which the agent or the verifier works."""
        return next(self.known_containers()).settings.memory_mb

    def known_containers(self) -> Iterator[Environment]:
        """Its containers; where its compose file cannot be obeyed, and so nothing is started, this one alone."""
        try:
            return iter(tuple(self.containers()))
        except TrialError:
            return iter((self,))

    @property
    def networks(self) -> Networks:
        """The networks of its container over its life: in a verifier's own no agent works, and in the agent's no such
        verifier."""
        if self.role == "verifier":
            start = self.settings.network
            return Networks(start, start, self.task.file.verifier.network_in(start))
        of_steps = (step.file.networks for step in self.task.whole.steps)
        asked = frozenset(policy for each in of_steps for policy in (each.agent, each.verifier))
        return replace(self.task.file.networks, of_steps=asked)

    def variables(self) -> dict[str, str]:
        """Its variables, with what they may take from tbench's environment. Raises TrialError(env_missing)."""
        return self.task.resolve_env(self.settings.env)

    def require_unchanged(self) -> None:
        """Compare the build context with the task's hash. Raises TrialError(task_changed)."""
        self.task.require_unchanged(self.folder)


def agent_environment(task: Task) -> Environment:
    """What the sandbox is made of in which the agent works."""
    user = task.file.agent.user
    return Environment(task, task.file.environment, user=None if user is None else str(user))


def verifier_environment(task: Task) -> Environment | None:
    """What the verifier's own sandbox is made of; None where it runs in the agent's.

    Its image is that of [verifier.environment], else the one that the tests' folder is the build context of, else the
    agent's, of which it is a fresh one without anything of the agent's.
    """
    if not task.file.verifier.is_separate:
        return None
    user, brings_tests = task.file.verifier.user, task.brings_tests
    image = task.file.verifier.image if brings_tests else task.file.environment.docker_image
    return Environment(
        task,
        _verifier_settings(task.file).model_copy(update={"docker_image": image}),
        role="verifier",
        folder=task.tests_folder if brings_tests else "environment",
        user=None if user is None else str(user),
        brings_tests=brings_tests,
    )


def _verifier_settings(file: TaskFile) -> EnvironmentSection:
    """Those of [verifier.environment], else of [environment]; with the network that [verifier] asks for."""
    settings = file.verifier.environment or file.environment
    if file.verifier.network_mode is None or settings.healthcheck is not None:
        # A healthcheck has the network of the start; without one nothing happens before the tests.
        return settings
    network = {"network_mode": file.verifier.network_mode, "allowed_hosts": file.verifier.allowed_hosts}
    return settings.model_copy(update=network)
