/* Prints the paths below directories that changed at a time or later: `changed SECONDS[.FRACTION] DIRECTORY...`.
 * With -b before the time: those that were made then, directories included. Other file systems are left out.
 * Neither the change of a status nor a birth can be dated back from inside a container, unlike the times of contents. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <fts.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static double seconds(struct timespec time) {
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static int is_new(const FTSENT *entry, double since, int by_birth) {
    struct statx found;
    if (!by_birth)
        return entry->fts_info != FTS_D && seconds(entry->fts_statp->st_ctim) >= since;
    return statx(AT_FDCWD, entry->fts_path, AT_SYMLINK_NOFOLLOW, STATX_BTIME, &found) == 0 &&
           (found.stx_mask & STATX_BTIME) && (double)found.stx_btime.tv_sec + found.stx_btime.tv_nsec / 1e9 >= since;
}

int main(int count, char **words) {
    int by_birth = count > 1 && strcmp(words[1], "-b") == 0;
    char **directories = words + 2 + by_birth;
    double since = count > 2 + by_birth ? atof(words[1 + by_birth]) : 0;
    FTS *walk = count > 2 + by_birth ? fts_open(directories, FTS_PHYSICAL | FTS_NOCHDIR | FTS_XDEV, NULL) : NULL;
    FTSENT *entry;
    if (!walk)
        return 2;
    while ((entry = fts_read(walk)) != NULL) {
        int kind = entry->fts_info;
        if (kind != FTS_DP && kind != FTS_DNR && kind != FTS_NS && kind != FTS_ERR && is_new(entry, since, by_birth))
            puts(entry->fts_path);
    }
    return 0;
}
