/* Looks at the terminal of a tmux pane, from beside it.
 *
 *   tty look PID TTY          prints one line about who has the foreground, and whether he waits for input
 *   tty interrupt PID TTY     sends SIGINT to the terminal's shells
 *   tty keys PID TTY          prints a line if nothing goes on until somebody types
 *   tty kill PID TTY          kills the foreground's processes; the terminal's shell only where it ignores SIGINT
 *   tty clear PID TTY SEC     kills what holds the terminal from outside of its session and is younger than SEC
 *
 * PID is the pane's first process, whose children are shells. What cannot be known is a "?". */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

struct process {
    int pid, parent, group, session, foreground; /* foreground: of its terminal; -1 where it has none */
    char state, name[64];
    unsigned long long started; /* clock ticks since boot */
    int depth;                  /* see find_depths */
};

/* Reads a file of /proc; `where` is a process, or a thread of one ("12/task/13"). */
static int read_file(const char *where, const char *file, char *text, size_t size) {
    char path[96];
    snprintf(path, sizeof path, "/proc/%.40s/%s", where, file);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? -1 : read(fd, text, size - 1);
    if (fd >= 0)
        close(fd);
    text[length < 0 ? 0 : length] = 0;
    return length > 0;
}

static int read_process(const char *where, struct process *found) {
    char text[1024], *name, *rest;
    if (!read_file(where, "stat", text, sizeof text) || !(name = strchr(text, '(')) || !(rest = strrchr(text, ')')))
        return 0;
    *rest = 0;
    snprintf(found->name, sizeof found->name, "%s", name + 1);
    found->pid = atoi(text);
    /* See proc(5): state, ppid, pgrp, session, tty_nr, tpgid, 13 others, starttime. */
    return sscanf(rest + 1, " %c %d %d %d %*d %d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &found->state,
                  &found->parent, &found->group, &found->session, &found->foreground, &found->started) == 6;
}

/* The next entry of /proc, or of a process's tasks, that is a number. */
static const char *next_number(DIR *all) {
    struct dirent *entry;
    while ((entry = readdir(all)))
        if (isdigit((unsigned char)entry->d_name[0]))
            return entry->d_name;
    return NULL;
}

/* The kernel shows where a process sleeps, and its files, to its own user alone (or with a right that containers
 * lack); root may take that user's place for the file system. */
static void as_owner_of(const char *where) {
    char path[64];
    struct stat owner;
    snprintf(path, sizeof path, "/proc/%.40s", where);
    if (geteuid() == 0 && stat(path, &owner) == 0) {
        setfsgid(owner.st_gid);
        setfsuid(owner.st_uid);
    }
}

static void as_myself(void) {
    setfsuid(geteuid());
    setfsgid(getegid());
}

/* 'y', 'n', or '?' where the kernel does not say. A sleep in one of these may also be for a socket. */
static char waits_for_input(const char *where) {
    static const char *const sleeps[] = {"n_tty_read", "wait_woken", "poll_schedule", "do_select", "do_poll", "do_sys_poll",
                                         "ep_poll", "do_epoll"};
    char sleep[64];
    as_owner_of(where);
    int known = read_file(where, "wchan", sleep, sizeof sleep) && strcmp(sleep, "0") != 0;
    as_myself();
    if (!known)
        return '?';
    for (size_t i = 0; i < sizeof sleeps / sizeof *sleeps; i++)
        if (strncmp(sleep, sleeps[i], strlen(sleeps[i])) == 0)
            return 'y';
    return 'n';
}

struct doing {
    int running, waiting, unknown;
    unsigned long long cpu_nanoseconds;
};

static char waiting(const struct doing *sum) {
    return sum->waiting ? 'y' : sum->unknown ? '?' : 'n';
}

static void add(const struct doing *part, struct doing *sum) {
    sum->running += part->running;
    sum->waiting += part->waiting;
    sum->unknown += part->unknown;
    sum->cpu_nanoseconds += part->cpu_nanoseconds;
}

/* What the threads of a process do: a program's first one may sleep while another reads. */
static struct doing threads(int pid) {
    struct doing sum = {0};
    char path[64], text[128];
    const char *thread;
    struct process found;
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *all = opendir(path);
    while (all && (thread = next_number(all))) {
        snprintf(path, sizeof path, "%d/task/%.10s", pid, thread);
        if (!read_process(path, &found) || found.state == 'Z')
            continue;
        if (read_file(path, "schedstat", text, sizeof text))
            sum.cpu_nanoseconds += strtoull(text, NULL, 10);
        sum.running += found.state != 'S' && found.state != 'T';
        char waits = found.state == 'S' ? waits_for_input(path) : 'n';
        sum.waiting += waits == 'y';
        sum.unknown += waits == '?';
    }
    if (all)
        closedir(all);
    return sum;
}

/* `busybox vi` is named vi. */
static void name_applet(struct process *shown) {
    char words[256];
    char where[16];
    snprintf(where, sizeof where, "%d", shown->pid);
    if (strcmp(shown->name, "busybox") == 0 && read_file(where, "cmdline", words, sizeof words))
        snprintf(shown->name, sizeof shown->name, "%.63s", words[strlen(words) + 1] ? words + strlen(words) + 1 : "sh");
}

static char mode(int known, tcflag_t set) {
    return !known ? '?' : set ? 'y' : 'n';
}

/* All processes; their number. */
static size_t read_processes(struct process **found) {
    size_t count = 0, room = 0;
    const char *pid;
    DIR *all = opendir("/proc");
    *found = NULL;
    while (all && (pid = next_number(all))) {
        if (count == room && !(*found = realloc(*found, (room += 256) * sizeof **found)))
            exit(1);
        count += read_process(pid, *found + count) && (*found)[count].state != 'Z';
    }
    if (all)
        closedir(all);
    return count;
}

/* The process itself or its nearest forebear that has a depth; NULL where none has. */
static const struct process *nearest(const struct process *all, size_t count, int pid) {
    for (int hops = 0; hops < 32; hops++) {
        size_t i = 0;
        while (i < count && all[i].pid != pid)
            i++;
        if (i == count || all[i].depth >= 0)
            return i == count ? NULL : all + i;
        pid = all[i].parent;
    }
    return NULL;
}

static int depth_above(const struct process *all, size_t count, int pid) {
    const struct process *above = nearest(all, count, pid);
    return above ? above->depth : -1;
}

/* Whether it may read the terminal: the kernel hides the files of who has changed his user. */
static int may_read(const struct process *reader, const char *tty) {
    char where[16], path[64], target[256];
    snprintf(where, sizeof where, "%d", reader->pid);
    snprintf(path, sizeof path, "/proc/%s/fd/0", where);
    as_owner_of(where);
    ssize_t length = readlink(path, target, sizeof target - 1);
    int hidden = length < 0 && errno == EACCES;
    as_myself();
    target[length < 0 ? 0 : length] = 0;
    return hidden || strcmp(target, tty) == 0;
}

/* Gives depth 0, too, to what the foreground runs in a session without a terminal while it waits for its end, and what
 * reads this one all the same, as with `su USER -c`. */
static void find_guests(struct process *all, size_t count, const char *tty) {
    for (size_t i = 0; i < count; i++) {
        if (all[i].depth >= 0 || all[i].foreground != -1)
            continue;
        const struct process *host = nearest(all, count, all[i].parent);
        if (host && may_read(all + i, tty) && !threads(host->pid).waiting)
            all[i].depth = 0;
    }
}

/* Gives depth 0 to the foreground, 1 to the foreground of a terminal that it made and passes keys on to (as sudo and
 * script do), and so on; the largest depth. */
static int find_depths(struct process *all, size_t count, int foreground, int passes_on) {
    int deepest = 0;
    for (size_t i = 0; i < count; i++)
        all[i].depth = all[i].group == foreground ? 0 : -1;
    for (int more = passes_on; more && deepest < 8;) {
        more = 0;
        for (size_t i = 0; i < count; i++)
            if (all[i].depth < 0 && all[i].group == all[i].foreground &&
                depth_above(all, count, all[i].parent) == deepest)
                more = all[i].depth = deepest + 1;
        deepest += more != 0;
    }
    return deepest;
}

static int look(struct process *pane, const char *pid, const char *tty) {
    struct process *all = NULL, shown = {0};
    struct doing sum = {0}, first = {0};
    struct termios modes = {0};
    int foreground, known, tries = 0, queue = 0, fd = open(tty, O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    size_t count;
    do {
        free(all);
        foreground = pane->foreground;
        known = fd >= 0 && tcgetattr(fd, &modes) == 0 && ioctl(fd, FIONREAD, &queue) == 0;
        count = read_processes(&all);
    } while (read_process(pid, pane) && pane->foreground != foreground && ++tries < 5); /* a look at two is none */
    int deepest = find_depths(all, count, foreground, known && !(modes.c_lflag & ICANON));
    if (!deepest)
        find_guests(all, count, tty);
    for (size_t i = 0; i < count; i++) {
        if (all[i].depth < 0)
            continue;
        struct doing part = threads(all[i].pid);
        if (all[i].group == foreground && (!shown.pid || all[i].pid == all[i].group))
            shown = all[i];
        if (all[i].group == foreground && all[i].pid == all[i].group)
            first = part;
        if (all[i].depth < deepest) /* who passes keys on always waits for some */
            part.waiting = part.unknown = 0;
        add(&part, &sum);
    }
    free(all);
    name_applet(&shown);
    printf("group=%d running=%d waiting=%c first=%c cpu=%llu queue=%d canonical=%c echo=%c crnl=%c name=%s\n", foreground,
           sum.running, waiting(&sum), waiting(&first), sum.cpu_nanoseconds, queue, mode(known, modes.c_lflag & ICANON),
           mode(known, modes.c_lflag & ECHO), mode(known, modes.c_iflag & ICRNL), shown.name);
    return 0;
}

/* Whether something may come to it from elsewhere than the terminal, or whether that cannot be seen. */
static int hears_from_elsewhere(int pid) {
    static const char *const silent[] = {"/dev/tty", "/dev/null", "/dev/pts/", "/dev/zero", "/dev/random", "/dev/urandom",
                                         "pipe:", "anon_inode:[signalfd]", "anon_inode:[event"};
    char where[16], path[64], target[256];
    struct dirent *entry;
    int elsewhere = 0;
    snprintf(where, sizeof where, "%d", pid);
    snprintf(path, sizeof path, "/proc/%s/fd", where);
    as_owner_of(where);
    DIR *files = opendir(path);
    while (files && !elsewhere && (entry = readdir(files))) {
        if (entry->d_name[0] == '.')
            continue;
        ssize_t length = readlinkat(dirfd(files), entry->d_name, target, sizeof target - 1);
        target[length < 0 ? 0 : length] = 0;
        elsewhere = target[0] != '/' || strncmp(target, "/dev/", 5) == 0;
        for (size_t i = 0; elsewhere && i < sizeof silent / sizeof *silent; i++)
            elsewhere = strncmp(target, silent[i], strlen(silent[i])) != 0;
        elsewhere = elsewhere || strcmp(target, "/dev/pts/ptmx") == 0; /* the other end of a terminal that it made */
    }
    as_myself();
    if (!files)
        return 1;
    closedir(files);
    return elsewhere;
}

/* Whether one process began the other, or what began that, and so on. */
static int is_below(const struct process *all, size_t count, int pid, int above) {
    for (int hops = 0; hops < 64 && pid > 1 && pid != above; hops++) {
        size_t i = 0;
        while (i < count && all[i].pid != pid)
            i++;
        pid = i == count ? 0 : all[i].parent;
    }
    return pid == above;
}

/* How a thread sleeps: 'r' reads a terminal (or a socket), 'p' waits for one of several things, 'o' waits for another
 * process, 0 where it does anything else, such as waiting for a time. */
static char sleeps(const char *thread) {
    static const struct {
        const char *name;
        char how;
    } known[] = {{"n_tty_read", 'r'},     {"wait_woken", 'r'},      {"poll_schedule", 'p'}, {"do_select", 'p'},
                 {"do_poll", 'p'},        {"do_sys_poll", 'p'},     {"ep_poll", 'p'},       {"do_epoll", 'p'},
                 {"do_wait", 'o'},        {"pipe_read", 'o'},       {"pipe_write", 'o'},    {"anon_pipe_read", 'o'},
                 {"anon_pipe_write", 'o'}};
    char where[64];
    as_owner_of(thread);
    int is_known = read_file(thread, "wchan", where, sizeof where);
    as_myself();
    for (size_t i = 0; is_known && i < sizeof known / sizeof *known; i++)
        if (strncmp(where, known[i].name, strlen(known[i].name)) == 0)
            return known[i].how;
    return 0;
}

/* Prints the CPU time of all that the terminal's shell has begun, if nothing of it goes on until somebody types: none
 * runs, or waits for a time; and the foreground reads the terminal, or has changed its modes to do so, and can hear from
 * nowhere else. Else it prints nothing. */
static int keys(const struct process *pane, const char *tty) {
    struct process *all = NULL, found;
    struct termios modes = {0};
    int queue = 0, reads = 0, fd = open(tty, O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    int is_changed = fd >= 0 && tcgetattr(fd, &modes) == 0 && (modes.c_lflag & (ICANON | ECHO)) != (ICANON | ECHO);
    unsigned long long cpu = 0;
    if (fd < 0 || ioctl(fd, FIONREAD, &queue) != 0 || queue)
        return 0;
    size_t count = read_processes(&all);
    for (size_t i = 0; i < count; i++) {
        if (all[i].session != pane->session && !is_below(all, count, all[i].pid, pane->pid))
            continue;
        int is_foreground = all[i].group == pane->foreground;
        if (is_foreground && hears_from_elsewhere(all[i].pid))
            return 0;
        char path[64], text[128];
        const char *thread;
        snprintf(path, sizeof path, "/proc/%d/task", all[i].pid);
        DIR *threads = opendir(path);
        while (threads && (thread = next_number(threads))) {
            snprintf(path, sizeof path, "%d/task/%.10s", all[i].pid, thread);
            if (!read_process(path, &found) || found.state == 'Z')
                continue;
            char how = found.state == 'S' ? sleeps(path) : found.state == 'T' ? 'o' : 0;
            if (!how)
                return 0;
            reads += is_foreground && (how == 'r' || (how == 'p' && is_changed));
            if (read_file(path, "schedstat", text, sizeof text))
                cpu += strtoull(text, NULL, 10);
        }
        if (threads)
            closedir(threads);
    }
    if (reads)
        printf("cpu=%llu\n", cpu);
    return 0;
}

/* Who left its session has kept /dev/tty of the session before; where it has a terminal of its own, it means that. */
static int is_terminal(const char *path, const char *tty, const struct process *holder) {
    return strcmp(path, tty) == 0 || (strcmp(path, "/dev/tty") == 0 && holder->foreground == -1);
}

static int holds(const char *pid, const struct process *holder, const char *tty) {
    char path[64], target[256];
    struct dirent *entry;
    int held = 0;
    if (strcmp(holder->name, "alone") == 0)
        return 0; /* passes on what others print (alone.c), and reads nothing */
    as_owner_of(pid);
    snprintf(path, sizeof path, "/proc/%.10s/fd", pid);
    DIR *files = opendir(path);
    while (files && !held && (entry = readdir(files))) {
        ssize_t length = readlinkat(dirfd(files), entry->d_name, target, sizeof target - 1);
        target[length < 0 ? 0 : length] = 0;
        held = is_terminal(target, tty, holder);
    }
    if (files)
        closedir(files);
    as_myself();
    return held;
}

static int is_younger(const struct process *found, double seconds) {
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    double began = (double)found->started / (double)sysconf(_SC_CLK_TCK);
    return began + seconds + 0.05 >= (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Such a shell does not drop the rest of a command when it is told to. */
static int ignores_interrupts(const char *pid) {
    char text[4096], *ignored;
    return read_file(pid, "status", text, sizeof text) && (ignored = strstr(text, "SigIgn:")) &&
           strtoull(ignored + 7, NULL, 16) >> (SIGINT - 1) & 1;
}

enum { INTERRUPT, KILL, CLEAR };

static int is_meant(const char *pid, const struct process *found, const struct process *pane, int what, const char *tty,
                    double seconds) {
    if (found->pid == pane->pid || found->pid == getpid() || found->pid == 1)
        return 0;
    if (found->parent == pane->pid)
        return what == INTERRUPT || (what == KILL && ignores_interrupts(pid));
    if (what == KILL)
        return pane->foreground > 1 && found->group == pane->foreground && found->group != pane->group;
    return what == CLEAR && found->session != pane->session && is_younger(found, seconds) && holds(pid, found, tty);
}

/* Prints whom it signals. */
static int signal_all(const struct process *pane, int what, const char *tty, double seconds) {
    struct process found;
    const char *pid;
    DIR *all = opendir("/proc");
    if (!all)
        return 1;
    while ((pid = next_number(all)))
        if (read_process(pid, &found) && is_meant(pid, &found, pane, what, tty, seconds) &&
            kill(found.pid, what == INTERRUPT ? SIGINT : SIGKILL) == 0)
            printf("%d %s\n", found.pid, found.name);
    closedir(all);
    return 0;
}

int main(int count, char **words) {
    struct process pane;
    if (count < 4 || !read_process(words[2], &pane))
        return 2;
    if (strcmp(words[1], "look") == 0)
        return look(&pane, words[2], words[3]);
    if (strcmp(words[1], "keys") == 0)
        return keys(&pane, words[3]);
    int what = strcmp(words[1], "interrupt") == 0 ? INTERRUPT : strcmp(words[1], "kill") == 0 ? KILL : CLEAR;
    return signal_all(&pane, what, words[3], count > 4 ? atof(words[4]) : 0);
}
