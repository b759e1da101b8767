/* The names of hosts that are allowed. */
#include <ctype.h>
#include <string.h>

#include "proxy.h"

static char **allowed;
static int allowed_count;

void allow(char **hosts, int count) {
    allowed = hosts;
    allowed_count = count;
}

int everything_is_allowed(void) { return allowed_count == 1 && strcmp(allowed[0], "*") == 0; }

/* Copies a host's name in small letters, without a dot at its end; 0 for what is none. */
int read_name(host_name name, const char *from, size_t length) {
    if (length > 0 && from[length - 1] == '.')
        length--;
    if (length == 0 || length > LONGEST_NAME)
        return 0;
    for (size_t i = 0; i < length; i++) {
        if (!isalnum((unsigned char)from[i]) && !strchr("-_.", from[i]))
            return 0;
        name[i] = (char)tolower((unsigned char)from[i]);
    }
    name[length] = 0;
    return strlen(name) == length && name[0] != '.' && !strstr(name, "..");
}

int is_allowed(const char *name) {
    for (int i = 0; i < allowed_count; i++) {
        const char *host = allowed[i];
        size_t length = strlen(name), tail = strlen(host) - 1;
        if (strcmp(name, host) == 0)
            return 1;
        if (host[0] == '*' && host[1] == '.' && length > tail && strcmp(name + length - tail, host + 1) == 0)
            return 1;
    }
    return 0;
}
