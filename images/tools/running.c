/* Prints the number of each process that runs one of these files, a line each: `running FILE...`.
 *
 * The kernel tells what a process runs to its own user alone, or to one with a right that containers lack; root may take
 * that user's place for the file system. Files are compared, not their names: these say nothing in another root. */
#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <unistd.h>

int main(int count, char **words) {
    DIR *all = opendir("/proc");
    struct dirent *entry;
    while (all && (entry = readdir(all))) {
        char process[64], file[72];
        struct stat owner, runs, wanted;
        int is_seen;
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        snprintf(process, sizeof process, "/proc/%.40s", entry->d_name);
        snprintf(file, sizeof file, "%s/exe", process);
        if (geteuid() == 0 && stat(process, &owner) == 0) {
            setfsgid(owner.st_gid);
            setfsuid(owner.st_uid);
        }
        is_seen = stat(file, &runs) == 0;
        setfsuid(geteuid());
        setfsgid(getegid());
        for (int i = 1; is_seen && i < count; i++)
            if (stat(words[i], &wanted) == 0 && wanted.st_dev == runs.st_dev && wanted.st_ino == runs.st_ino) {
                puts(entry->d_name);
                break;
            }
    }
    return all ? 0 : 1;
}
