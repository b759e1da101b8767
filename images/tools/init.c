/* PID 1 of a sandbox: takes in orphans and waits. Nobody inside can end it: the kernel keeps PID 1 from SIGKILL of its own
 * namespace, other signals count only where they come from outside, and nobody without CAP_SYS_PTRACE can write into a
 * process that is not dumpable. So `kill -9 -1` by the agent ends what runs in the container, not the container.
 *
 * init [PROGRAM ARGUMENT...]        starts the program, the image's entry point, and goes on when it ends
 * init --held [PROGRAM ARGUMENT...] starts it when SIGUSR1 comes from outside */
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void start(char **program) {
    if (fork() != 0)
        return;
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid();
    execvp(program[0], program);
    fprintf(stderr, "the entry point %s cannot be started: %s\n", program[0], strerror(errno));
    _exit(127);
}

int main(int count, char **words) {
    sigset_t all;
    char **program = words + 1;
    int held = count > 1 && strcmp(words[1], "--held") == 0;
    program += held;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    prctl(PR_SET_DUMPABLE, 0);
    if (*program != NULL && !held)
        start(program);
    for (;;) {
        siginfo_t signal;
        while (waitpid(-1, NULL, WNOHANG) > 0) {
        }
        /* A sender outside of the namespace has no process number in it. */
        if (sigwaitinfo(&all, &signal) <= 0 || signal.si_pid != 0 || signal.si_code > 0)
            continue;
        if (signal.si_signo == SIGTERM || signal.si_signo == SIGINT)
            return 128 + signal.si_signo;
        if (signal.si_signo == SIGUSR1 && held && *program != NULL) {
            held = 0;
            start(program);
        }
    }
}
