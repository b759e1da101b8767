/* PID 1 of a sandbox: takes in orphans and waits. Nobody inside can end it: the kernel keeps PID 1 from SIGKILL of its own
 * namespace, other signals count only where they come from outside, and nobody without CAP_SYS_PTRACE can write into a
 * process that is not dumpable. So `kill -9 -1` by the agent ends what runs in the container, not the container. */
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/wait.h>

int main(void) {
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    prctl(PR_SET_DUMPABLE, 0);
    for (;;) {
        siginfo_t signal;
        while (waitpid(-1, NULL, WNOHANG) > 0) {
        }
        /* A sender outside of the namespace has no process number in it. */
        if (sigwaitinfo(&all, &signal) > 0 && signal.si_pid == 0 && signal.si_code <= 0 &&
            (signal.si_signo == SIGTERM || signal.si_signo == SIGINT))
            return 128 + signal.si_signo;
    }
}
