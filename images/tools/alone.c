/* Runs a shell's text in a session of its own, without a terminal: `alone FILE`.
 *
 * The text runs as `bash -c` runs it (`sh -c` where there is no bash), with empty input and without the variables that
 * belong to the terminal. What it prints comes out of one pipe, in the order in which it was printed. This ends with
 * the shell and its exit code (128 + signal where one killed it). What was left running in the background may go on
 * printing: it is passed on. SIGINT, SIGQUIT and SIGTERM kill the shell's process group. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LONGEST_ARGUMENT = 128 * 1024 - 1 }; /* MAX_ARG_STRLEN of Linux, without the byte that ends it */

#define LONG_TEXT "__tbench_text=$(/opt/tbench/bin/busybox cat '%s'; printf .); eval \"${__tbench_text%%.}\""

static const char *const OF_THE_TERMINAL[] = {"TERM", "TERMINFO_DIRS", "LOCPATH", "TMUX", "TMUX_PANE", "TERM_PROGRAM",
                                              "TERM_PROGRAM_VERSION", "SHELL", "PS0", "PROMPT_COMMAND", "SHLVL", "_"};

/* The text, or where it is too long for an argument a text that reads it. NULL where it cannot be read. */
static char *read_text(const char *path) {
    struct stat about;
    char *text = NULL;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &about) != 0)
        return NULL;
    if (about.st_size > LONGEST_ARGUMENT)
        return asprintf(&text, LONG_TEXT, path) < 0 ? NULL : text;
    text = calloc(1, (size_t)about.st_size + 1);
    return text && read(file, text, (size_t)about.st_size) == about.st_size ? text : NULL;
}

static void run(char *text, int output, const sigset_t *before) {
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    const char *directory = getenv("PWD");
    int moved = directory && chdir(directory) == 0; /* by name: it may have been removed and made again */
    (void)moved;                                    /* where there is none, the one that was removed has to do */
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(nothing, 0);
    dup2(output, 1);
    dup2(output, 2);
    sigprocmask(SIG_SETMASK, before, NULL);
    for (size_t i = 0; i < sizeof OF_THE_TERMINAL / sizeof *OF_THE_TERMINAL; i++)
        unsetenv(OF_THE_TERMINAL[i]);
    execlp("bash", "bash", "-c", "--", text, (char *)NULL);
    execlp("sh", "sh", "-c", "--", text, (char *)NULL);
    perror("no shell");
    _exit(127);
}

/* 0 at the end of the input, 1 where there may be more, -1 where none is there yet. */
static int pass_on(int from) {
    char bytes[65536];
    ssize_t count = read(from, bytes, sizeof bytes);
    for (ssize_t done = 0, now; done < count; done += now)
        if ((now = write(1, bytes + done, (size_t)(count - done))) < 0)
            return 0;
    return count > 0 ? 1 : count == 0 ? 0 : errno == EAGAIN ? -1 : errno == EINTR;
}

static void pass_on_in_background(int from) {
    if (fork() != 0)
        return;
    setsid();
    fcntl(from, F_SETFL, 0);
    while (pass_on(from) != 0)
        ;
    _exit(0);
}

/* Passes on what the child prints until it has ended; its status. */
static int attend(int child, int output, const sigset_t *watched) {
    struct pollfd news[] = {{.fd = signalfd(-1, watched, SFD_CLOEXEC), .events = POLLIN}, {.fd = output, .events = POLLIN}};
    int status = 0, more = 1;
    for (;;) {
        struct signalfd_siginfo signal;
        poll(news, 2, -1);
        if (news[1].revents && (more = pass_on(output)) == 0)
            news[1].fd = -1;
        if (!(news[0].revents & POLLIN) || read(news[0].fd, &signal, sizeof signal) != sizeof signal)
            continue;
        if (signal.ssi_signo != SIGCHLD)
            kill(-child, SIGKILL);
        else if (waitpid(child, &status, WNOHANG) == child)
            break;
    }
    while (more != 0 && (more = pass_on(output)) > 0)
        ;
    if (more < 0)
        pass_on_in_background(output);
    return status;
}

int main(int count, char **words) {
    int ends[2], child, status;
    sigset_t watched, before;
    char *text = count == 2 ? read_text(words[1]) : NULL;
    if (!text || pipe2(ends, O_CLOEXEC) != 0)
        return 125;
    sigemptyset(&watched);
    sigaddset(&watched, SIGCHLD);
    sigaddset(&watched, SIGINT);
    sigaddset(&watched, SIGQUIT);
    sigaddset(&watched, SIGTERM);
    sigprocmask(SIG_BLOCK, &watched, &before);
    if ((child = fork()) < 0)
        return 125;
    if (child == 0)
        run(text, ends[1], &before);
    close(ends[1]);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    status = attend(child, ends[0], &watched);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}
