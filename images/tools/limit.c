/* Runs a program for so long at most: `limit SECONDS PROGRAM [ARGUMENT...]`.
 *
 * At the limit the program gets SIGTERM, and SIGKILL five seconds later. This ends with the program and its exit code
 * (128 + signal where one killed it): nothing of it is left beside what comes next, as a watcher in the background would
 * be. The program ends with this. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { GRACE_SEC = 5 };

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

int main(int count, char **words) {
    int status = 0, next = SIGTERM;
    sigset_t child_news, before;
    pid_t child, parent = getpid();
    double ends_at;
    if (count < 3 || atof(words[1]) <= 0) {
        fprintf(stderr, "limit SECONDS PROGRAM [ARGUMENT...]\n");
        return 125;
    }
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
            ends_at += GRACE_SEC;
            continue;
        }
        struct timespec wait = {.tv_sec = (time_t)left, .tv_nsec = (long)((left - (double)(time_t)left) * 1e9)};
        sigtimedwait(&child_news, NULL, &wait);
    }
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}
