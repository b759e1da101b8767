"""Recipes for the sandboxes of a task: image or build context, limits, network and variables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tbench.compose.project import COMPOSE_FILE, MAIN, MAIN_IMAGE_PLACEHOLDER, ImageBuild, Project, Service
from tbench.errors import TrialError
from tbench.tasks.format import EnvironmentSection, TaskFile
from tbench.tasks.network import Networks
from tbench.tasks.task import Task

Role = Literal["agent", "verifier"]
"""The program for which a sandbox is made."""
_BUILD_FROM_FOLDER = ImageBuild(".")


@dataclass(frozen=True)
class Environment:
    """Recipe for one kind of sandbox: an image or the folder to build it from, limits, network and variables."""

    task: Task
    """The task, whose hash and consent apply."""
    settings: EnvironmentSection
    role: Role = "agent"
    folder: str = "environment"
    """Build context: a folder of the task, as a relative path."""
    user: str | None = None
    """Default user in the container; None for the image's own."""
    service: str = MAIN
    """Compose service of the container that this describes."""
    build: ImageBuild | None = _BUILD_FROM_FOLDER
    """Build of the image, with the context relative to the folder; None for an image that is only pulled."""
    brings_tests: bool = False
    """Whether the image contains the tests at /tests, so that they need not be copied there."""

    @property
    def name(self) -> str:
        """Name in messages, image names and build logs: the task's name, with a suffix unless the sandbox is the
        agent's."""
        details: list[str] = [] if self.role == "agent" else [self.role]
        if self.role == "verifier" and self.task.step is not None:
            details.append(f"step {self.task.step.name}")
        if self.service != MAIN:
            details.append(self.service)
        return f"{self.task.name} ({', '.join(details)})" if details else self.task.name

    @property
    def image_name(self) -> str:
        """Name of the image that is built from the context, shared by all environments of the same folder."""
        folder = "" if self.folder == "environment" else self.folder
        service = "" if self.service == MAIN else self.service
        return "-".join(filter(None, (self.task.name, folder, service)))

    @property
    def path(self) -> Path:
        """Directory of the build context."""
        folder = self.task.path / self.folder
        return folder if self.build is None else folder / self.build.context

    def context_paths(self) -> list[Path]:
        """Return the sorted paths of the build context: those in the task's hash, or all if the context is
        elsewhere."""
        if not self.path.is_relative_to(self.task.path):
            return sorted(self.path.rglob("*"))
        return self.task.context(self.path.relative_to(self.task.path).as_posix())

    @property
    def dockerfile(self) -> Path:
        """Path of the Dockerfile, which need not exist if an image is given."""
        return self.path / ((self.build and self.build.dockerfile) or "Dockerfile")

    @property
    def can_be_built(self) -> bool:
        """Whether there is a Dockerfile to build the image from."""
        return self.build is not None and (self.build.inline is not None or self.dockerfile.is_file())

    @property
    def project(self) -> Project | None:
        """The services of the compose file; None for a single container.

        Raises TaskInvalid, and TrialError with env_missing (missing variable), trust_missing or task_unsupported.
        """
        services = self.task.services_of(self.folder, self.settings)
        if services is None:
            return None
        file = self.task.path / self.folder / COMPOSE_FILE
        if services.missing or services.project is None:
            names = ", ".join(sorted({asked.name for asked in services.missing}))
            raise TrialError("env_missing", f"{file}: needs {names}; set it and add --allow-env")
        if services.unsupported:
            raise TrialError("task_unsupported", f"{file}: {', '.join(services.unsupported)}")
        if services.host_access and not self.task.may_use_host:
            raise TrialError("trust_missing", f"{file}: {'; '.join(services.host_access)}; --trust allows it")
        return services.project

    def containers(self) -> Iterator[Environment]:
        """Iterate over the recipes of all containers, the agent's or verifier's first. Raises like `project`."""
        project = self.project
        if project is None:
            yield self
            return
        yield self.for_service(project.main)
        yield from (self.for_service(sidecar) for sidecar in project.sidecars)

    def for_service(self, service: Service) -> Environment:
        """Return the recipe of one service's container."""
        if service.name == MAIN:
            given = {"docker_image": self._image_of_main(service), **service.limits}
            settings = self.settings.model_copy(update=given)
            return replace(self, settings=settings, build=service.build or self.build)
        is_as_main = service.build is None and service.image == MAIN_IMAGE_PLACEHOLDER
        main = self.for_service(self.project.main) if is_as_main and self.project is not None else None
        published = service.image if service.build is None else None
        # A service without limits has the default limits of tasks.
        settings = EnvironmentSection(
            build_timeout_sec=self.settings.build_timeout_sec,
            docker_image=published if main is None else main.settings.docker_image,
        ).model_copy(update=service.limits)
        build = service.build if main is None else main.build
        return replace(self, settings=settings, service=service.name, build=build, user=None)

    def _image_of_main(self, service: Service) -> str | None:
        """Return the image of `main` if it is not built."""
        own = None if service.build or service.image == MAIN_IMAGE_PLACEHOLDER else service.image
        # If it is built, `image` is only the name that the built image gets.
        return own if own and (self.settings.docker_image or not self.can_be_built) else self.settings.docker_image

    @property
    def cpus(self) -> float:
        """CPUs of all containers together."""
        return sum(each.settings.cpus for each in self.known_containers())

    @property
    def memory_mb(self) -> float:
        """Memory of all containers together."""
        return sum(each.settings.memory_mb for each in self.known_containers())

    @property
    def main_memory_mb(self) -> float:
        """Memory of the container in which the agent or the verifier works."""
        return next(self.known_containers()).settings.memory_mb

    def known_containers(self) -> Iterator[Environment]:
        """Iterate over the containers; only this one if the compose file is unusable, so that nothing is started."""
        try:
            return iter(tuple(self.containers()))
        except TrialError:
            return iter((self,))

    @property
    def networks(self) -> Networks:
        """Networks of the container in its phases; agent and separate verifier never share a container."""
        if self.role == "verifier":
            start = self.settings.network
            return Networks(start, start, self.task.file.verifier.network_in(start))
        of_steps = (step.file.networks for step in self.task.whole.steps)
        asked = frozenset(policy for each in of_steps for policy in (each.agent, each.verifier))
        return replace(self.task.file.networks, of_steps=asked)

    def variables(self) -> dict[str, str]:
        """Return the variables, with allowed ones from tbench's environment. Raises TrialError(env_missing)."""
        return self.task.resolve_env(self.settings.env)

    def require_unchanged(self) -> None:
        """Compare the build context with the task's hash. Raises TrialError(task_changed)."""
        is_below = self.path.is_relative_to(self.task.path / self.folder)
        self.task.require_unchanged(self.folder if is_below or not self.path.is_relative_to(self.task.path) else None)


def agent_environment(task: Task) -> Environment:
    """Return the recipe of the agent's sandbox."""
    user = task.file.agent.user
    return Environment(task, task.file.environment, user=None if user is None else str(user))


def verifier_environment(task: Task) -> Environment | None:
    """Return the recipe of a separate verifier's sandbox; None if the verifier runs in the agent's.

    Its image is [verifier.environment]'s, or is built from the tests' folder, or else is the agent's image without the
    agent's work.
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
    """Return the settings of [verifier.environment], else of [environment], with the network of [verifier]."""
    settings = file.verifier.environment or file.environment
    if file.verifier.network_mode is None or settings.healthcheck is not None:
        # Healthchecks use the network of the start phase; without a healthcheck, nothing runs before the tests.
        return settings
    network = {"network_mode": file.verifier.network_mode, "allowed_hosts": file.verifier.allowed_hosts}
    return settings.model_copy(update=network)
