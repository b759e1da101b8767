/* Runs a task's test.sh, hears from its bash which commands that runs, and says so when all others stand still:
 * `witness SECONDS LINES OUTPUT STILL PROGRAM [ARGUMENT...]`. OUTPUT is the file for what the program prints; LINES are the
 * numbers of the script's lines that write the reward, each between blanks; STILL are processes that go on standing still,
 * also between blanks, while all others go on; empty where none was stopped.
 *
 * Standard input is the beginning of a message, whose first 36 bytes end it, too. It is printed as a whole at the end,
 * with facts of its own in it. Nobody in the container can open what belongs to this process, write into it, or read what
 * it was given, as it is not dumpable; and whoever ends it ends the program. Its channel is a socket, which cannot be
 * opened by its name, and the kernel tells who wrote into it: what bash's own process told counts as bash's, nothing else.
 *
 * At the limit the program gets SIGTERM, and SIGKILL five seconds later. */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    TRACE = 173, GRACE_SEC = 5, MARK = 36, KEPT = 20, LONGEST = 2000, BLOCK = 4096, AT_ONCE = 1000, PROGRAMS = 100,
    MOST_WORDS = 64, MOST_OF_OTHERS = 50000,
};
static const char SCRIPT[] = "/tests/test.sh:";
static const char *const BUILTINS = /* commands, and words of the shell, that start no program */
    " : '[' [[ (( exec test true false echo printf exit return break continue cd pwd set shift local declare typeset readonly "
    "export unset let read trap case for while until if then else elif fi do done in shopt umask ";
static const char *const ONLY_TOUCH = /* programs that run none of their operands; of any other each operand may be run */
    " rm rmdir cp mv ln ls cat chmod chown touch mkdir stat file tar grep find du ";

struct teller { /* bash itself, or all others, whose words are told apart by process */
    char lines[KEPT][LONGEST + 1];
    pid_t from[KEPT];
    unsigned count;
};
static struct teller own, others, calls;
static pid_t script;
static int began, ended, replaced, wrote, ran, spoke, cut, halted;
static const char *reward_lines;

/* Programs, and files that are sourced, that were there before the tests, as far as they lie elsewhere than on the search
 * path that the tests began with. */
static struct program {
    char *path;
    int runs_tests; /* whether the command names pytest, or the file is read by bash itself */
} programs[PROGRAMS];
static int unlooked; /* whether there were more than are looked at */
static const char *first_path;
static char path[BLOCK], path_of_others[BLOCK]; /* search paths, as they were last told */
static char entered[BLOCK], entered_by_others[BLOCK]; /* directories; who told of it may be gone when it is looked at */
static double began_at;

static double seconds(long long whole, long nanoseconds) {
    return (double)whole + (double)nanoseconds / 1e9;
}

static double now(clockid_t which) {
    struct timespec time;
    clock_gettime(which, &time);
    return seconds(time.tv_sec, time.tv_nsec);
}

static int is_among(const char *words, const char *word, size_t length) {
    for (const char *at = words; length && (at = strstr(at, " ")) != NULL; at++)
        if (strncmp(at + 1, word, length) == 0 && at[1 + length] == ' ')
            return 1;
    return 0;
}

/* An assignment starts nothing; its value may be what a command of its own printed, which has told of itself. */
static int is_assignment(const char *command, size_t length) {
    const char *equals = memchr(command, '=', length);
    if (equals == NULL || isdigit((unsigned char)*command))
        return 0;
    for (; command < equals; command++)
        if (!isalnum((unsigned char)*command) && strchr("_+[]", *command) == NULL)
            return 0;
    return 1;
}

static void keep(struct teller *teller, pid_t from, const char *line) {
    snprintf(teller->lines[teller->count % KEPT], LONGEST + 1, "%.*s", LONGEST, line);
    teller->from[teller->count++ % KEPT] = from;
}

/* Keeps the first line of a place. */
static void keep_first(struct teller *teller, pid_t from, const char *line) {
    size_t place = strcspn(line, " ") + 1;
    for (unsigned i = 0; i < teller->count; i++)
        if (strncmp(teller->lines[i], line, place) == 0)
            return;
    if (teller->count < KEPT)
        keep(teller, from, line);
}

/* Whether what lies there was there before the tests. A birth or a change of status cannot be dated back from inside. A
 * file that was written anew meanwhile is the tests', one that got other rights only is not. */
static int is_from_before(const char *name) {
    struct statx found;
    double since = began_at - 0.01; /* the kernel's clock of files goes by ticks */
    if (statx(AT_FDCWD, name, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS | STATX_BTIME, &found) != 0)
        return 0;
    double changed = seconds(found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec);
    double written = seconds(found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec);
    double born = found.stx_mask & STATX_BTIME ? seconds(found.stx_btime.tv_sec, found.stx_btime.tv_nsec) : changed;
    return born < since && (S_ISDIR(found.stx_mode) || changed < since || written < since || written > changed);
}

static void add(const char *name, int runs_tests) {
    static const char *const ours[] = {"/tests/", "/opt/tbench/", "/proc/", "/dev/"};
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (strncmp(name, ours[i], strlen(ours[i])) == 0)
            return;
    if (!is_from_before(name))
        return;
    for (struct program *each = programs; each < programs + PROGRAMS; each++) {
        if (each->path == NULL)
            each->path = strdup(name);
        if (each->path && strcmp(each->path, name) == 0) {
            each->runs_tests |= runs_tests;
            return;
        }
    }
    unlooked = 1;
}

static int is_on_first_path(const char *name) {
    size_t length = (size_t)(strrchr(name, '/') - name);
    for (const char *at = first_path; *at; at += at[strcspn(at, ":")] ? strcspn(at, ":") + 1 : strlen(at))
        if (length && strcspn(at, ":") == length && strncmp(at, name, length) == 0)
            return 1;
    return 0;
}

/* Looks at a program, by the name that it was called by and by what that leads to; of a Python's environment, too. */
static void look_at(const char *name, int runs_tests) {
    char real[PATH_MAX], place[2 * PATH_MAX], settings[2 * PATH_MAX + 16];
    const char *base = strrchr(name, '/');
    size_t length = (size_t)(base - name);
    if (is_on_first_path(name) || realpath(name, real) == NULL)
        return;
    if (!is_on_first_path(real))
        add(real, runs_tests);
    snprintf(place, sizeof place, "%.*s/.", (int)length, name);
    if (realpath(place, real) == NULL)
        return;
    snprintf(place, sizeof place, "%s%s", strcmp(real, "/") == 0 ? "" : real, base);
    add(place, runs_tests);
    *strrchr(place, '/') = 0;
    if ((base = strrchr(place, '/')) == NULL)
        return;
    place[base - place] = 0;
    snprintf(settings, sizeof settings, "%s/pyvenv.cfg", place);
    if (access(settings, F_OK) == 0)
        add(place, 1);
}

static int is_program(const char *name, int is_read) {
    struct stat found;
    return stat(name, &found) == 0 && S_ISREG(found.st_mode) && (is_read || found.st_mode & 0111);
}

/* Looks for a word of a command on a search path, as bash does. */
static void look_on(const char *directories, const char *word, int runs_tests) {
    char name[2 * BLOCK];
    for (const char *at = directories; *at; at += at[strcspn(at, ":")] ? strcspn(at, ":") + 1 : strlen(at)) {
        snprintf(name, sizeof name, "%.*s/%s", (int)strcspn(at, ":"), at, word);
        if (*name == '/' && is_program(name, 0)) {
            look_at(name, runs_tests);
            return;
        }
    }
}

static int is_interpreter(const char *command) {
    size_t length = strcspn(command, " "), begins = length;
    while (begins > 0 && command[begins - 1] != '/')
        begins--;
    return strncmp(command + begins, "python", 6) == 0 || (length >= 2 && strncmp(command + length - 2, "sh", 2) == 0);
}

/* Looks at the programs that a command names: a launcher runs one of its words, so each counts. */
static void look(pid_t from, const char *command) {
    static unsigned of_others;
    int is_own = from == script, sources = strncmp(command, "source ", 7) == 0 || strncmp(command, ". ", 2) == 0;
    int reads = sources || is_interpreter(command); /* a file that need not be executable, named first */
    int runs_tests = sources || strstr(command, "pytest") || strstr(command, "py.test");
    char copy[LONGEST + 1], name[2 * BLOCK + 32], here[32], *rest = copy, *word;
    const char *places[] = {here, is_own ? entered : entered_by_others, ""};
    if (!is_own && ++of_others > MOST_OF_OTHERS) {
        unlooked = 1;
        return;
    }
    snprintf(copy, sizeof copy, "%s", command);
    int most = is_among(ONLY_TOUCH, command, strcspn(command, " ")) ? 1 : MOST_WORDS;
    for (int count = 0; count < most && (word = strsep(&rest, " '\"")) != NULL;) {
        if (*word == 0 || *word == '-' || strlen(word) >= BLOCK)
            continue;
        int is_read = reads && count == 1;
        count++;
        if (strchr(word, '/') == NULL) {
            look_on(path, word, runs_tests);
            if (!is_own)
                look_on(path_of_others, word, runs_tests);
            if (!is_read)
                continue;
        }
        snprintf(here, sizeof here, "/proc/%d/cwd", (int)(from > 0 ? from : script));
        for (size_t i = *word == '/' ? 2 : 0; i < sizeof places / sizeof *places; i++) {
            if (*places[i] == 0 && *word != '/')
                continue;
            snprintf(name, sizeof name, "%s/%s", places[i], word + (*word == '/'));
            if (is_program(name, is_read))
                look_at(name, runs_tests);
        }
    }
}

static void take_path(char *known, const char *value) {
    size_t begins = *value == '+' ? strlen(known) : 0;
    value += strspn(value, "+='");
    snprintf(known + begins, (size_t)BLOCK - begins, "%.*s", (int)strcspn(value, "'"), value);
}

/* Takes a line of a trace: pluses, file, colon, number, blank, command. */
static void heard(pid_t from, const char *line) {
    const char *place = line + strspn(line, "+"), *command = strchr(place, ' ');
    size_t named = sizeof SCRIPT - 1;
    int is_reward, is_write;
    if (place == line || command == NULL)
        return;
    is_reward = strncmp(place, SCRIPT, named) == 0 &&
                is_among(reward_lines, place + named, (size_t)(command - place) - named);
    command++;
    if (strcmp(command, "echo ended") == 0) /* of our own trap, whose line is the first */
        return;
    size_t length = strcspn(command, " ");
    const char *run = command; /* behind words that say which kind of command it is */
    while (strncmp(run, "command ", 8) == 0 || strncmp(run, "builtin ", 8) == 0)
        run += 8;
    int starts = !is_among(BUILTINS, command, length) && !is_assignment(command, length);
    int replaces = strncmp(run, "exec ", 5) == 0;
    if (strncmp(command, "PATH=", 5) == 0 || strncmp(command, "PATH+=", 6) == 0)
        take_path(from == script ? path : path_of_others, command + 4);
    if (strncmp(command, "cd /", 4) == 0)
        snprintf(from == script ? entered : entered_by_others, BLOCK, "%s", command + 3);
    if (starts || replaces) {
        look(from, command);
        if (from == script && (strstr(command, "pytest") || strstr(command, "py.test")))
            keep_first(&calls, from, line);
    }
    is_write = is_reward && (strncmp(command, "echo ", 5) == 0 || strncmp(command, "printf ", 7) == 0);
    if (from != script) {
        spoke = 1;
        if (is_reward)
            keep(&others, from, line);
        return;
    }
    if (is_reward)
        keep(&own, from, line);
    if (is_write) {
        wrote = 1;
        ran = spoke = 0;
    } else if (replaces) {
        replaced = ran = 1; /* what takes bash's place is not bash */
    } else if (starts) {
        ran = 1;
    }
}

/* Whether bash writes the next line of its trace along with this one; it is the script's own words, not expanded. Of any
 * other command what follows a line break are its arguments, which may be somebody else's words. */
static int is_head(const char *line) {
    const char *command = strchr(line, ' ');
    return command != NULL && (strncmp(command, " case ", 6) == 0 || strncmp(command, " for ", 5) == 0 ||
                               strncmp(command, " select ", 8) == 0);
}

/* Takes what is in the channel; whether there may be more, as others may never stop to write. A packet is what bash wrote at once: a line, or a piece of one that is longer. */
static int hear(int channel) {
    static int goes_on;
    for (int count = 0; count < AT_ONCE; count++) {
        static char packet[1 << 18];
        char control[CMSG_SPACE(sizeof(struct ucred))] __attribute__((aligned(8)));
        struct iovec text = {packet, sizeof packet - 1};
        struct msghdr message = {.msg_iov = &text, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        struct ucred sender = {0};
        ssize_t length = recvmsg(channel, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        if (length < 0 || (length == 0 && header == NULL)) /* the end has no sender */
            return 0;
        if (header != NULL && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_CREDENTIALS)
            memcpy(&sender, CMSG_DATA(header), sizeof sender);
        packet[length] = 0;
        int is_own = sender.pid == script && !replaced, continues = is_own && goes_on;
        if (is_own)
            goes_on = length % BLOCK == 0 || packet[length - 1] != '\n';
        if (continues)
            continue;
        for (char *line = packet, *next; line != NULL; line = next) {
            next = line + strcspn(line, "\n");
            if (*next)
                *next++ = 0;
            next = *next && is_head(line) ? next : NULL;
            if (is_own && strcmp(line, "began") == 0)
                began = 1;
            else if (is_own && strcmp(line, "ended") == 0)
                ended = 1;
            else
                heard(is_own ? script : sender.pid == script ? -1 : sender.pid, line);
        }
    }
    return 1;
}

/* Whether what bash tells may be lost: its end of the channel is shared with all that it starts, and was changed by
 * one of them so that a write fails. It is looked at each time that something comes, before room can be short. */
static int may_lose(int end, short events) {
    struct timeval limit = {0};
    socklen_t length = sizeof limit;
    return (events & POLLRDHUP) || (fcntl(end, F_GETFL) & O_NONBLOCK) ||
           getsockopt(end, SOL_SOCKET, SO_SNDTIMEO, &limit, &length) != 0 || limit.tv_sec || limit.tv_usec;
}

static void run(char **program, int channel, const char *output, pid_t parent, const sigset_t *before) {
    char number[16];
    struct stat device;
    int nothing = open("/dev/null", O_RDONLY), file = open(output, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0644);
    setpgid(0, 0); /* what a script does to its group (kill 0) is its own affair */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    /* Where that device is something else, no script is run as it should be. */
    if (getppid() != parent || file < 0 || nothing < 0 || fstat(nothing, &device) != 0 || !S_ISCHR(device.st_mode))
        _exit(126);
    dup2(nothing, 0);
    dup2(file, 1);
    dup2(file, 2);
    dup2(channel, TRACE);
    close(nothing);
    close(file);
    close(channel);
    snprintf(number, sizeof number, "%d", TRACE);
    setenv("TBENCH_TRACE", number, 1);
    sigprocmask(SIG_SETMASK, before, NULL);
    execvp(program[0], program);
    fprintf(stderr, "%s: %s\n", program[0], strerror(errno));
    _exit(errno == ENOENT ? 127 : 126);
}

/* Has all processes go on but those that are to stand still, and the first. */
static void go_on(const char *still) {
    DIR *all = opendir("/proc");
    struct dirent *entry;
    while (all && (entry = readdir(all)) != NULL)
        if (isdigit((unsigned char)*entry->d_name) && !is_among(still, entry->d_name, strlen(entry->d_name)) &&
            atoi(entry->d_name) != 1 && atoi(entry->d_name) != getpid())
            kill(atoi(entry->d_name), SIGCONT);
    if (all)
        closedir(all);
}

static char *read_all(size_t *length) {
    size_t room = 1 << 16;
    char *data = malloc(room);
    ssize_t got;
    *length = 0;
    while (data && (got = read(0, data + *length, room - *length)) > 0) {
        *length += (size_t)got;
        if (*length == room)
            data = realloc(data, room *= 2);
    }
    return data;
}

/* Takes the signals that came. Nobody has reason to let go on who does not stand still; the engine is nobody inside. */
static void take_signals(int signals) {
    struct signalfd_siginfo taken;
    while (read(signals, &taken, sizeof taken) == (ssize_t)sizeof taken)
        if (taken.ssi_signo == SIGCONT && (taken.ssi_code != SI_USER || taken.ssi_pid != 0))
            halted = 1;
}

/* Waits for the script's end; whether it reached its limit. */
static int await(const int *channel, int signals, double limit_sec, int *status) {
    double ends_at = now(CLOCK_MONOTONIC) + limit_sec;
    int next = SIGTERM, at_limit = 0;
    struct pollfd news[2] = {{.fd = channel[0], .events = POLLIN | POLLRDHUP}, {.fd = signals, .events = POLLIN}};
    /* Not yet reaped: its number is nobody else's as long as there may be words of it. */
    for (;;) {
        siginfo_t child = {0};
        if (waitid(P_PID, (id_t)script, &child, WEXITED | WNOHANG | WNOWAIT) < 0 || child.si_pid == script)
            break;
        double left = ends_at - now(CLOCK_MONOTONIC);
        if (left <= 0) {
            kill(script, next);
            next = SIGKILL;
            at_limit = 1;
            ends_at += GRACE_SEC;
            continue;
        }
        news[0].revents = 0;
        poll(news, 2, left > 60 ? 60000 : (int)(left * 1000) + 1);
        take_signals(signals);
        cut |= may_lose(channel[1], news[0].revents);
        if (news[0].revents & POLLRDHUP)
            news[0].fd = -1;
        hear(channel[0]);
    }
    take_signals(signals);
    kill(-1, SIGSTOP);
    kill(getppid(), SIGCONT); /* what limits this one's time */
    cut |= may_lose(channel[1], 0);
    while (hear(channel[0]))
        ;
    waitpid(script, status, 0);
    return at_limit;
}

static void tell(const struct teller *teller, const char *kind) {
    for (unsigned i = teller->count > KEPT ? teller->count - KEPT : 0; i < teller->count; i++) {
        if (teller == &others)
            printf("%s\t%d %s\n", kind, (int)teller->from[i % KEPT], teller->lines[i % KEPT]);
        else
            printf("%s\t%s\n", kind, teller->lines[i % KEPT]);
    }
}

int main(int count, char **words) {
    int channel[2], passes = 1, status = 0, signals;
    double since_boot;
    sigset_t child_news, before;
    size_t length;
    pid_t parent = getpid();
    prctl(PR_SET_DUMPABLE, 0);
    if (count < 6 || atof(words[1]) <= 0) {
        fprintf(stderr, "witness SECONDS LINES OUTPUT STILL PROGRAM [ARGUMENT...]\n");
        return 125;
    }
    char *message = read_all(&length);
    reward_lines = words[2];
    first_path = getenv("PATH") ? getenv("PATH") : "";
    snprintf(path, sizeof path, "%s", first_path);
    sigemptyset(&child_news);
    sigaddset(&child_news, SIGCHLD);
    sigaddset(&child_news, SIGCONT); /* comes to one that stood still */
    sigprocmask(SIG_BLOCK, &child_news, &before);
    signals = signalfd(-1, &child_news, SFD_CLOEXEC | SFD_NONBLOCK);
    if (message == NULL || length < MARK || signals < 0 ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, channel) < 0 ||
        setsockopt(channel[0], SOL_SOCKET, SO_PASSCRED, &passes, sizeof passes) < 0) {
        perror("witness");
        return 125;
    }
    began_at = now(CLOCK_REALTIME);
    since_boot = now(CLOCK_BOOTTIME);
    if ((script = fork()) < 0) {
        perror("witness");
        return 125;
    }
    if (script == 0)
        run(words + 5, channel[1], words[3], parent, &before);
    if (*words[4])
        go_on(words[4]);
    int at_limit = await(channel, signals, atof(words[1]), &status);
    fwrite(message, 1, length, stdout);
    printf("code\t%d\nlate\t%d\nbegan_at\t%.6f\nticks\t%ld\n",
           WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status), at_limit, began_at,
           (long)(since_boot * (double)sysconf(_SC_CLK_TCK)));
    if (began)
        printf("began\t\n");
    if (ended)
        printf("ended\t\n");
    tell(&own, "told");
    tell(&others, "told_by");
    tell(&calls, "called");
    for (const struct program *each = programs; each < programs + PROGRAMS && each->path; each++)
        if (strchr(each->path, '\n') == NULL)
            printf("%s\t%s\n", each->runs_tests ? "runner" : "program", each->path);
        else
            unlooked = 1;
    if (unlooked)
        printf("unlooked\t\n");
    if (cut)
        printf("cut\t\n");
    if (halted)
        printf("halted\t\n");
    if (wrote && !ran)
        printf(spoke ? "wrote_last\tand others spoke\n" : "wrote_last\t\n");
    printf("%.*s end\n", MARK, message);
    return fflush(stdout) ? 1 : 0;
}
