/* Asks name servers for addresses, and answers the trial's queries. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proxy.h"

enum { TYPE_A = 1, CLASS_IN = 1, NO_SUCH_NAME = 3, SERVER_FAILURE = 2, MOST_SERVERS = 3, ANSWER_MS = 3000 };

static struct sockaddr_in servers[MOST_SERVERS];
static int server_count;

void read_servers(void) {
    char line[256], address[64];
    FILE *file = fopen("/etc/resolv.conf", "re");
    while (file && server_count < MOST_SERVERS && fgets(line, sizeof line, file)) {
        struct sockaddr_in *next = &servers[server_count];
        if (sscanf(line, " nameserver %63s", address) != 1 || inet_pton(AF_INET, address, &next->sin_addr) != 1)
            continue;
        next->sin_family = AF_INET;
        next->sin_port = htons(53);
        server_count++;
    }
    if (file)
        fclose(file);
}

/* A query for the IPv4 addresses of a name; its length. */
static size_t make_query(unsigned char *query, const char *name) {
    unsigned char *end = query + 12;
    memset(query, 0, 12);
    if (getrandom(query, 2, 0) != 2)
        _exit(1);
    put16(query + 2, 0x0100); /* recursion is desired */
    put16(query + 4, 1);
    for (const char *label = name; *label;) {
        size_t length = strcspn(label, ".");
        *end++ = (unsigned char)length;
        memcpy(end, label, length);
        end += length;
        label += length + (label[length] == '.');
    }
    *end++ = 0;
    put16(end, TYPE_A);
    put16(end + 2, CLASS_IN);
    return (size_t)(end + 4 - query);
}

/* Position after the name at `at`; 0 where the message ends in it. */
static size_t skip_name(const unsigned char *message, size_t length, size_t at) {
    while (at < length && message[at] != 0) {
        if (message[at] >= 0xc0)
            return at + 2 <= length ? at + 2 : 0;
        at += message[at] + 1u;
    }
    return at < length ? at + 1 : 0;
}

static int read_addresses(const unsigned char *answer, size_t length, size_t at, in_addr_t *addresses) {
    int count = 0;
    for (unsigned records = get16(answer + 6); records > 0 && count < MOST_ADDRESSES; records--) {
        at = skip_name(answer, length, at);
        if (at == 0 || at + 10 > length || at + 10 + get16(answer + at + 8) > length)
            break;
        if (get16(answer + at) == TYPE_A && get16(answer + at + 2) == CLASS_IN && get16(answer + at + 8) == 4)
            memcpy(&addresses[count++], answer + at + 10, 4);
        at += 10 + get16(answer + at + 8);
    }
    return count;
}

/* Sends a query to a server and waits for its answer; its length, 0 where none comes. */
static size_t ask(const struct sockaddr_in *server, const unsigned char *query, size_t length, unsigned char *answer) {
    long ends_at = now_ms() + ANSWER_MS;
    ssize_t got = 0;
    int asking = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct pollfd news = {.fd = asking, .events = POLLIN};
    if (asking < 0 || connect(asking, (const struct sockaddr *)server, sizeof *server) != 0 ||
        send(asking, query, length, 0) != (ssize_t)length)
        ends_at = 0;
    while (got <= 0 && now_ms() < ends_at && poll(&news, 1, (int)(ends_at - now_ms())) > 0) {
        got = recv(asking, answer, LONGEST_MESSAGE, 0);
        if (got < 0)
            break;
        if (got < 12 || memcmp(answer, query, 2) != 0 || !(answer[2] & 0x80))
            got = 0;
    }
    close(asking);
    return got > 0 ? (size_t)got : 0;
}

/* Fills in the IPv4 addresses of an allowed name; their number, -1 where no server says anything of it. */
int resolve(const char *name, in_addr_t *addresses) {
    unsigned char query[512], answer[LONGEST_MESSAGE];
    size_t length = make_query(query, name);
    for (int turn = 0; turn < 2 * server_count; turn++) {
        size_t got = ask(&servers[turn % server_count], query, length, answer);
        unsigned code = got ? answer[3] & 15 : SERVER_FAILURE;
        if (got >= length && memcmp(answer + 12, query + 12, length - 12) == 0 && (code == 0 || code == NO_SUCH_NAME))
            return read_addresses(answer, got, length, addresses);
    }
    return -1;
}

/* Reads the name of the one question; position after it, 0 where the message is no plain question. */
static size_t read_question(const unsigned char *query, size_t length, host_name name) {
    char text[LONGEST_NAME + 2];
    size_t at = 12, used = 0;
    if (length < 17 || query[2] & 0xf8 || get16(query + 4) != 1)
        return 0;
    while (at < length && query[at] != 0) {
        size_t label = query[at];
        if (label > 63 || at + 1 + label > length || used + label + 1 > LONGEST_NAME)
            return 0;
        memcpy(text + used, query + at + 1, label);
        /* A dot within a label would be another name than the one that is looked at. */
        if (memchr(text + used, '.', label))
            return 0;
        used += label;
        text[used++] = '.';
        at += label + 1;
    }
    return at + 5 <= length && read_name(name, text, used) ? at + 5 : 0;
}

/* Turns a query into its answer, within the same buffer; the answer's length, 0 for none. */
static size_t answer_to(unsigned char *query, size_t length) {
    host_name name;
    in_addr_t addresses[MOST_ADDRESSES];
    size_t end = read_question(query, length, name);
    unsigned type = end ? get16(query + end - 4) : 0, code = 0;
    int count = 0;
    if (end == 0)
        return 0;
    if (!is_allowed(name))
        code = NO_SUCH_NAME;
    else if (type == TYPE_A && (count = resolve(name, addresses)) < 0)
        code = SERVER_FAILURE, count = 0;
    put16(query + 2, 0x8080u | (query[2] & 1u) << 8 | code);
    put16(query + 6, (unsigned)count);
    memset(query + 8, 0, 4);
    for (int i = 0; i < count; i++, end += 16) {
        static const unsigned char record[12] = {0xc0, 12, 0, TYPE_A, 0, CLASS_IN, 0, 0, 0, 60, 0, 4};
        memcpy(query + end, record, sizeof record);
        memcpy(query + end + 12, &addresses[i], 4);
    }
    return end;
}

/* Where all is allowed, queries and answers are passed on as they are. */
static size_t pass_on_query(unsigned char *query, size_t length) {
    unsigned char answer[LONGEST_MESSAGE];
    for (int turn = 0; length >= 12 && turn < 2 * server_count; turn++) {
        size_t got = ask(&servers[turn % server_count], query, length, answer);
        if (got == 0)
            continue;
        memcpy(query, answer, got);
        return got;
    }
    return 0;
}

void answer_datagram(int socket, unsigned char *query, size_t length, const struct sockaddr_in *from) {
    size_t end = everything_is_allowed() ? pass_on_query(query, length) : answer_to(query, length);
    if (end > 0)
        sendto(socket, query, end, 0, (const struct sockaddr *)from, sizeof *from);
}

void answer_stream(int client) {
    unsigned char message[2 + LONGEST_MESSAGE];
    if (everything_is_allowed()) {
        int server = server_count ? connect_to(servers[0].sin_addr.s_addr, htons(53)) : -1;
        if (server >= 0)
            pass_both_ways(client, server, -1);
        return;
    }
    while (read_all(client, message, 2) && get16(message) <= LONGEST_QUERY &&
           read_all(client, message + 2, get16(message))) {
        size_t length = get16(message);
        size_t end = answer_to(message + 2, length);
        put16(message, (unsigned)end);
        if (end == 0 || !write_all(client, message, end + 2))
            return;
    }
}
