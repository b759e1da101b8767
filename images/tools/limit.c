/* Runs a program for so long at most: `limit SECONDS PROGRAM [ARGUMENT...]`.
 *
 * At the limit the program gets SIGTERM, and SIGKILL five seconds later. This ends with the program and its exit code
 * (128 + signal where one killed it): nothing of it is left beside what comes next, as a watcher in the background would
 * be. The program ends with this.
 *
 * With TBENCH_END in the environment, which the program does not get, that is printed behind what the program has
 * printed, then 1 if it reached the limit, else 0, and its exit code in three digits: whoever reads knows that it is
 * whole, and that no connection was cut. Nobody in the container can open its output by way of it, as it is not
 * dumpable. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { GRACE_SEC = 5, TELL_MS = 60000 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void run(char **program, pid_t parent, const sigset_t *before) {
    setpgid(0, 0); /* what a script does to its group (kill 0) is its own affair */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(137);
    sigprocmask(SIG_SETMASK, before, NULL);
    execvp(program[0], program);
    fprintf(stderr, "%s: %s\n", program[0], strerror(errno));
    _exit(errno == ENOENT ? 127 : 126);
}

/* It is short, so a pipe that has room takes it whole; who does not read for a minute is given up. */
static void tell(const char *end, int at_limit, int code) {
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    char *told = NULL;
    int length = asprintf(&told, "%s%d%03d", end, at_limit, code);
    signal(SIGPIPE, SIG_IGN);
    if (length > 0 && poll(&out, 1, TELL_MS) == 1 && write(STDOUT_FILENO, told, (size_t)length) < 0)
        return;
}

int main(int count, char **words) {
    char *end = getenv("TBENCH_END");
    int status = 0, next = SIGTERM, at_limit = 0;
    sigset_t child_news, before;
    pid_t child, parent = getpid();
    double ends_at;
    prctl(PR_SET_DUMPABLE, 0);
    if (count < 3 || atof(words[1]) <= 0) {
        fprintf(stderr, "limit SECONDS PROGRAM [ARGUMENT...]\n");
        return 125;
    }
    if (end != NULL && (end = strdup(end)) != NULL)
        unsetenv("TBENCH_END");
    ends_at = now() + atof(words[1]);
    sigemptyset(&child_news);
    sigaddset(&child_news, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child_news, &before);
    if ((child = fork()) < 0) {
        perror("limit");
        return 125;
    }
    if (child == 0)
        run(words + 2, parent, &before);
    while (waitpid(child, &status, WNOHANG) != child) {
        double left = ends_at - now();
        if (left <= 0) {
            kill(child, next);
            next = SIGKILL;
            at_limit = 1;
            ends_at += GRACE_SEC;
            continue;
        }
        struct timespec wait = {.tv_sec = (time_t)left, .tv_nsec = (long)((left - (double)(time_t)left) * 1e9)};
        sigtimedwait(&child_news, NULL, &wait);
    }
    status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    if (end != NULL)
        tell(end, at_limit, status);
    return status;
}
