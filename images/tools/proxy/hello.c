/* Which host a connection wants, by the first bytes that its client sends: TLS or HTTP/1. */
#define _GNU_SOURCE
#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "proxy.h"

/* What was read of one extension of a ClientHello, if it is the server's name: 1 with the name, 0 if not, -1 if wrong. */
static int read_server_name(const unsigned char *extension, size_t length, host_name name) {
    size_t size;
    if (get16(extension) != 0)
        return 0;
    /* A list of one entry of kind 0. */
    if (length < 9 || get16(extension + 4) != length - 6 || extension[6] != 0)
        return -1;
    size = get16(extension + 7);
    return size == length - 9 && read_name(name, (const char *)extension + 9, size) ? 1 : -1;
}

/* Looks for the server's name in a whole ClientHello; 1 when there is exactly one. See RFC 8446, 4.1.2. */
static int read_client_hello(const unsigned char *hello, size_t length, host_name name) {
    size_t at = 2 + 32;
    int found = 0;
    if (at >= length || (at += 1u + hello[at]) + 2 > length) /* session */
        return 0;
    if ((at += 2 + get16(hello + at)) >= length) /* ciphers */
        return 0;
    if ((at += 1u + hello[at]) + 2 > length) /* compression */
        return 0;
    if (get16(hello + at) != length - at - 2)
        return 0;
    for (at += 2; at + 4 <= length;) {
        size_t size = 4 + get16(hello + at + 2);
        int is = at + size <= length ? read_server_name(hello + at, size, name) : -1;
        if (is < 0 || (found += is) > 1)
            return 0;
        at += size;
    }
    return found == 1 && at == length;
}

/* 1 with the name that a TLS client asks for, 0 while more has to come, -1 where it says none. */
int name_of_tls(const unsigned char *data, size_t length, host_name name) {
    static unsigned char joined[LONGEST_HELLO];
    size_t size = 0, wanted;
    for (size_t at = 0; at + 5 <= length;) {
        size_t record = get16(data + at + 3), there = length - at - 5;
        if (data[at] != 22 || data[at + 1] != 3 || record == 0 || size + record > sizeof joined)
            return -1;
        memcpy(joined + size, data + at + 5, there < record ? there : record);
        size += there < record ? there : record;
        if (size > 0 && joined[0] != 1)
            return -1;
        wanted = size >= 4 ? 4 + ((size_t)joined[1] << 16 | get16(joined + 2)) : sizeof joined;
        if (size >= wanted)
            return size == wanted && read_client_hello(joined + 4, size - 4, name) ? 1 : -1;
        at += 5 + record;
    }
    return 0;
}

static int is_header(const char *line, const char *name) {
    return strncasecmp(line, name, strlen(name)) == 0 && line[strlen(name)] == ':';
}

/* Whether a header's name holds no blanks: servers differ in what they make of them. */
static int has_plain_name(const char *line, const char *end) {
    while (line < end && *line != ':' && !isspace((unsigned char)*line))
        line++;
    return line < end && *line == ':';
}

/* Reads the name in the value of a Host header. */
static int read_host(const char *value, size_t length, host_name name) {
    const char *port = memchr(value, ':', length);
    size_t after = port ? length - (size_t)(port - value) - 1 : 0;
    for (size_t i = 0; i < after; i++)
        if (!isdigit((unsigned char)port[1 + i]))
            return 0;
    return read_name(name, value, port ? (size_t)(port - value) : length);
}

/* Reads the value of a Content-Length header; -1 for what is no such number. */
static long long read_length(const char *value, size_t length) {
    long long found = 0;
    if (length == 0 || length > 15)
        return -1;
    for (size_t i = 0; i < length; i++) {
        if (!isdigit((unsigned char)value[i]))
            return -1;
        found = 10 * found + (value[i] - '0');
    }
    return found;
}

/* What the headers of a request say that is of interest here. */
struct headers {
    int hosts, lengths, encodings;
    long long length;
};

/* Reads a header into what is known; 0 for one with which it cannot be told who is meant, or where the request ends. */
static int read_header(const char *line, const char *end, struct headers *known, host_name name) {
    const char *value;
    if (!has_plain_name(line, end))
        return 0;
    for (value = strchr(line, ':') + 1; value < end && isblank((unsigned char)*value);)
        value++;
    while (end > value && isblank((unsigned char)end[-1]))
        end--;
    if (is_header(line, "Host"))
        return ++known->hosts == 1 && read_host(value, (size_t)(end - value), name);
    if (is_header(line, "Content-Length"))
        return ++known->lengths == 1 && (known->length = read_length(value, (size_t)(end - value))) >= 0;
    known->encodings += is_header(line, "Transfer-Encoding");
    return 1;
}

/* Whether a header is about the connection, which is another one beyond the proxy. */
static int is_of_the_connection(const char *line) {
    return is_header(line, "Connection") || is_header(line, "Keep-Alive") || is_header(line, "Upgrade");
}

static int is_request_line(const char *line, const char *end) {
    const char *target = memchr(line, ' ', (size_t)(end - line));
    return target && target[1] == '/' && end - line >= 12 && strncmp(end - 9, " HTTP/1.", 8) == 0;
}

/* 1 with the host that an HTTP/1 request names, 0 while more has to come, -1 where it names none, or several.
 *
 * A second request could name another host, so there is none: the request is rewritten so that the server closes after
 * its answer, and `rest` says how much of its body is still to come (-1 where that shows only in the body). One whose
 * target holds a host of its own is refused for the same reason. */
int name_of_http(unsigned char *data, size_t *length, host_name name, long long *rest) {
    static char made[LONGEST_HELLO + 64];
    static const char last[] = "Connection: close\r\n\r\n";
    char *text = (char *)data, *end = memmem(text, *length, "\r\n\r\n", 4), *line, *next;
    struct headers known = {0};
    size_t used = 0, body;
    if (memchr(text, 0, end ? (size_t)(end - text) : *length))
        return -1;
    if (!end)
        return 0;
    for (line = text; line < end + 2; line = next + 2) {
        next = memmem(line, (size_t)(end + 2 - line), "\r\n", 2);
        if (memchr(line, '\n', (size_t)(next - line)) || memchr(line, '\r', (size_t)(next - line)))
            return -1;
        if (line == text ? !is_request_line(line, next) : !read_header(line, next, &known, name))
            return -1;
        if (line != text && is_of_the_connection(line))
            continue;
        memcpy(made + used, line, (size_t)(next + 2 - line));
        used += (size_t)(next + 2 - line);
    }
    if (known.hosts != 1 || (known.lengths && known.encodings) || known.encodings > 1)
        return -1;
    memcpy(made + used, last, sizeof last - 1);
    used += sizeof last - 1;
    body = *length - (size_t)(end + 4 - text);
    if (!known.encodings && (long long)body > known.length)
        body = (size_t)known.length; /* what follows would be another request */
    if (used + body > LONGEST_HELLO)
        return -1;
    memcpy(made + used, end + 4, body);
    memcpy(data, made, *length = used + body);
    *rest = known.encodings ? -1 : known.length - (long long)body;
    return 1;
}
