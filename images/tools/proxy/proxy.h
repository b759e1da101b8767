/* What the parts of the proxy know of each other; see main.c. */
#include <netinet/in.h>
#include <stddef.h>

enum {
    MOST_ADDRESSES = 16,
    LONGEST_NAME = 253,
    LONGEST_QUERY = 3584, /* of DNS */
    LONGEST_MESSAGE = 4096,
    LONGEST_HELLO = 32768, /* bytes in which a connection has to say where it goes */
    HELLO_MS = 15000,
};

typedef char host_name[LONGEST_NAME + 1];

extern in_addr_t inside; /* the proxy's own address on the link to the trial */

/* names.c */
void allow(char **hosts, int count);
int everything_is_allowed(void);
int is_allowed(const char *name);
int read_name(host_name name, const char *from, size_t length);

/* dns.c */
void read_servers(void);
int resolve(const char *name, in_addr_t *addresses);
void answer_datagram(int socket, unsigned char *query, size_t length, const struct sockaddr_in *from);
void answer_stream(int client);

/* hello.c */
int name_of_tls(const unsigned char *data, size_t length, host_name name);
int name_of_http(unsigned char *data, size_t *length, host_name name, long long *rest);

/* passing.c */
void serve(int client);
int connect_to(in_addr_t address, in_port_t port);
void pass_both_ways(int client, int server, long long rest);
int read_all(int from, unsigned char *into, size_t length);
int write_all(int to, const void *bytes, size_t length);
long now_ms(void);

static inline unsigned get16(const unsigned char *at) { return (unsigned)at[0] << 8 | at[1]; }

static inline void put16(unsigned char *at, unsigned value) {
    at[0] = (unsigned char)(value >> 8);
    at[1] = (unsigned char)value;
}
