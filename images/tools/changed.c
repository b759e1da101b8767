/* Prints the paths below directories whose status changed at a time or later, other than directories, a line each:
 * `changed SECONDS[.FRACTION] DIRECTORY...`. No change of a status can be dated back from inside a container, unlike
 * the times of contents. Other file systems are left out.
 * `changed -a SECONDS LATER MOST DIRECTORY` prints all paths instead, directories included, a zero byte behind each, and
 * before it 0, 1 where its status changed since SECONDS, 2 where since LATER, m for where another file system begins. Where
 * MOST is more than 0, paths in directories that did not change are left out, as they are all there, and the first MOST that
 * changed go to descriptor 3, too, a line each, if they have no line break in them: c for a file below 16 KB, f for one below
 * 1 MB, b for a larger one, l for a link, a for anything else, a tab, the path. */
#define _GNU_SOURCE
#include <errno.h>
#include <fts.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int is_since(const FTSENT *entry, double since) {
    struct timespec at = entry->fts_statp->st_ctim;
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9 >= since;
}

static char flag_of(const FTSENT *entry, dev_t device, double since, double later) {
    if (entry->fts_statp->st_dev != device)
        return S_ISDIR(entry->fts_statp->st_mode) ? 'm' : '0';
    return is_since(entry, later) ? '2' : is_since(entry, since) ? '1' : '0';
}

static char kind_of(const FTSENT *entry) {
    off_t size = entry->fts_statp->st_size;
    if (entry->fts_info != FTS_F)
        return entry->fts_info == FTS_SL ? 'l' : 'a';
    return size < 1 << 14 ? 'c' : size < 1 << 20 ? 'f' : 'b';
}

/* Whether the root is an overlay of the kernel's in which a change of anything below a directory changes that, too: what is
 * changed is copied up, after all directories above it. With an index another name of a file may change without that. */
static int copies_directories_up(void) {
    static char line[1 << 16];
    FILE *index = fopen("/sys/module/overlay/parameters/index", "r"), *mounts = fopen("/proc/self/mounts", "r");
    int copies = 0;
    if (index && mounts && fgetc(index) == 'N')
        while (fgets(line, sizeof line, mounts))
            if (strstr(line, " / "))
                copies = strstr(line, " / overlay ") && !strstr(line, "=on");
    return copies;
}

int main(int count, char **words) {
    int all = count > 1 && strcmp(words[1], "-a") == 0;
    int first = all ? 5 : 2;
    double since = count > first ? atof(words[all + 1]) : 0, later = count > first && all ? atof(words[3]) : 0;
    int most = count > first && all ? atoi(words[4]) : 0;
    FILE *list = most > 0 ? fdopen(3, "w") : NULL;
    FTS *walk = count > first ? fts_open(words + first, FTS_PHYSICAL | FTS_NOCHDIR | FTS_XDEV, NULL) : NULL;
    FTSENT *entry;
    int prunes = list && copies_directories_up();
    char flag;
    if (!walk || (most > 0 && !list))
        return 2;
    while ((entry = fts_read(walk)) != NULL) {
        int kind = entry->fts_info;
        if (kind == FTS_DP || kind == FTS_DNR || kind == FTS_NS || kind == FTS_ERR)
            continue;
        if (all) {
            flag = flag_of(entry, walk->fts_dev, since, later);
            if (flag == '0' && kind == FTS_D && prunes)
                fts_set(walk, entry, FTS_SKIP);
            if (flag == '0' && list && entry->fts_level > 0 && !is_since(entry->fts_parent, since))
                continue;
            printf("%c%s%c", flag, entry->fts_path, 0);
            if ((flag == '1' || flag == '2') && most-- > 0 && !strchr(entry->fts_path, '\n'))
                fprintf(list, "%c\t%s\n", kind_of(entry), entry->fts_path);
        } else if (kind != FTS_D && is_since(entry, since))
            puts(entry->fts_path);
    }
    return errno || ferror(stdout) || fflush(stdout) || (list && fclose(list)) ? 1 : 0;
}
