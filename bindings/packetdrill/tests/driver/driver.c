/* Plays packetdrill's part: loads the shared object, makes calls, injects packets and expects packets at their times.
 *
 *     driver LIBRARY SCENARIO
 *
 * exits with 0 if the scenario holds; else says on which line it does not. Without SCENARIO, lists them. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "interface.h"
#include "packet.h"

static struct packetdrill_interface ifc;
static packetdrill_interface_init_t init;

#define U ifc.userdata
#define MS 1000LL
#define OURS 8080
#define THEIRS 40000

#define CHECK(condition)                                                                                              \
    do {                                                                                                              \
        if (!(condition)) {                                                                                           \
            fprintf(stderr, "%s:%d: does not hold: %s (errno %d, %s)\n", __FILE__, __LINE__, #condition, errno,        \
                    strerror(errno));                                                                                 \
            _exit(1);                                                                                                 \
        }                                                                                                             \
    } while (0)

#define EQUAL(left, right)                                                                                            \
    do {                                                                                                              \
        long long l_ = (long long)(left), r_ = (long long)(right);                                                    \
        if (l_ != r_) {                                                                                               \
            fprintf(stderr, "%s:%d: %s is %lld, not %lld (errno %d)\n", __FILE__, __LINE__, #left, l_, r_, errno);     \
            _exit(1);                                                                                                 \
        }                                                                                                             \
    } while (0)

/* The call fails, and errno says why. */
#define FAILS(call, number)                                                                                           \
    do {                                                                                                              \
        errno = 0;                                                                                                    \
        EQUAL(call, -1);                                                                                              \
        EQUAL(errno, number);                                                                                         \
    } while (0)

static long long now(void) {
    struct timeval tv;
    CHECK(ifc.gettimeofday(U, &tv, NULL) == 0);
    return tv.tv_sec * 1000000LL + tv.tv_usec;
}

static struct sockaddr_in address(uint32_t ip, uint16_t port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(ip)};
    return a;
}

static uint8_t buffer[70000];

static void send_segment(const struct segment *s) {
    uint8_t packet[4096];
    CHECK(ifc.netdev_send(U, packet, build_tcp(s, packet)) == 0);
}

/* The next segment that leaves, and when. */
static struct segment expect(long long *at) {
    static uint8_t packet[70000];
    size_t len = sizeof packet;
    long long time;
    struct segment s;
    CHECK(ifc.netdev_receive(U, packet, &len, &time) == 0);
    CHECK(len > 0);
    CHECK(parse_tcp(packet, len, &s) == 0);
    if (at)
        *at = time;
    return s;
}

/* No packet would leave, whatever time passes. */
static void expect_nothing(void) {
    size_t len = sizeof buffer;
    long long time;
    CHECK(ifc.netdev_receive(U, buffer, &len, &time) == 0);
    EQUAL(len, 0);
}

/* Takes out what is left to leave. */
static void drain(void) {
    long long time;
    size_t len;
    do {
        len = sizeof buffer;
        CHECK(ifc.netdev_receive(U, buffer, &len, &time) == 0);
    } while (len > 0);
}

/* The script's end of a connection. */
struct peer {
    uint16_t port, ours;
    uint32_t seq, ack;
};

static void inject(const struct peer *p, uint8_t flags, const void *data, size_t len) {
    struct segment s = {.from = p->port, .to = p->ours, .seq = p->seq, .ack = p->ack, .flags = flags, .window = 65000};
    s.data = data;
    s.len = len;
    send_segment(&s);
}

static struct segment syn(uint16_t from, uint16_t to, uint8_t flags, uint32_t seq, uint32_t ack) {
    struct segment s = {.from = from, .to = to, .seq = seq, .ack = ack, .flags = flags, .window = 65000};
    const uint8_t options[] = {2, 4, 1460 >> 8, 1460 & 255, 1, 1, 4, 2};
    memcpy(s.options, options, sizeof options);
    s.options_len = sizeof options;
    return s;
}

static int listener(void) {
    struct sockaddr_in a = address(LOCAL, OURS);
    int fd = ifc.socket(U, AF_INET, SOCK_STREAM, IPPROTO_TCP);
    CHECK(fd >= 0);
    EQUAL(ifc.bind(U, fd, (struct sockaddr *)&a, sizeof a), 0);
    EQUAL(ifc.listen(U, fd, 5), 0);
    return fd;
}

/* The peer opens a connection; its end. */
static struct peer opened(uint16_t port) {
    struct segment s = syn(port, OURS, SYN, 1000, 0);
    send_segment(&s);
    struct segment r = expect(NULL);
    EQUAL(r.flags, SYN | ACK);
    EQUAL(r.ack, 1001);
    EQUAL(r.to, port);
    EQUAL(option(&r, 2), 1460);
    EQUAL(option(&r, 4), 1);
    /* Not offered, so not there. */
    EQUAL(option(&r, 3), -1);
    EQUAL(option(&r, 8), -1);
    struct peer p = {.port = port, .ours = OURS, .seq = 1001, .ack = r.seq + 1};
    EQUAL(ifc.usleep(U, 10000), 0);
    inject(&p, ACK, NULL, 0);
    return p;
}

/* A connection that this side has accepted. */
static int accepted(struct peer *p) {
    int fd = listener();
    *p = opened(THEIRS);
    struct sockaddr_in from = {0};
    socklen_t len = sizeof from;
    int child = ifc.accept(U, fd, (struct sockaddr *)&from, &len);
    CHECK(child >= 0);
    EQUAL(len, sizeof from);
    EQUAL(ntohl(from.sin_addr.s_addr), REMOTE);
    EQUAL(ntohs(from.sin_port), THEIRS);
    EQUAL(ifc.close(U, fd), 0);
    return child;
}

static int get(int fd, int level, int name) {
    int value = -1;
    socklen_t len = sizeof value;
    EQUAL(ifc.getsockopt(U, fd, level, name, &value, &len), 0);
    EQUAL(len, sizeof value);
    return value;
}

static void set(int fd, int level, int name, int value) {
    EQUAL(ifc.setsockopt(U, fd, level, name, &value, sizeof value), 0);
}

static void nonblocking(int fd) {
    EQUAL(ifc.fcntl(U, fd, F_SETFL, O_RDWR | O_NONBLOCK), 0);
    EQUAL(ifc.fcntl(U, fd, F_GETFL, 0), O_RDWR | O_NONBLOCK);
}

/* --- scenarios --- */

static void passive_open_data_and_close(void) {
    struct peer p;
    int fd = accepted(&p);
    inject(&p, ACK | PSH, "question", 8);
    EQUAL(ifc.read(U, fd, buffer, sizeof buffer), 8);
    CHECK(memcmp(buffer, "question", 8) == 0);
    p.seq += 8;
    EQUAL(ifc.write(U, fd, "answer", 6), 6);
    struct segment s;
    /* The acknowledgement may go first, or with the data. */
    do
        s = expect(NULL);
    while (s.len == 0);
    EQUAL(s.seq, p.ack);
    EQUAL(s.ack, p.seq);
    EQUAL(s.len, 6);
    EQUAL(s.flags, ACK | PSH);
    CHECK(memcmp(s.data, "answer", 6) == 0);
    p.ack += 6;
    /* The peer finishes first. */
    inject(&p, ACK | FIN, NULL, 0);
    p.seq++;
    s = expect(NULL);
    EQUAL(s.flags, ACK);
    EQUAL(s.ack, p.seq);
    EQUAL(ifc.read(U, fd, buffer, sizeof buffer), 0);
    EQUAL(ifc.close(U, fd), 0);
    s = expect(NULL);
    EQUAL(s.flags, FIN | ACK);
    EQUAL(s.seq, p.ack);
    p.ack++;
    inject(&p, ACK, NULL, 0);
    expect_nothing();
    FAILS(ifc.read(U, fd, buffer, 1), EBADF);
}

static void active_open_and_close_first(void) {
    int fd = ifc.socket(U, AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in to = address(REMOTE, THEIRS);
    struct linger no = {0, 0};
    EQUAL(ifc.setsockopt(U, fd, SOL_SOCKET, SO_LINGER, &no, sizeof no), 0);
    nonblocking(fd);
    FAILS(ifc.connect(U, fd, (struct sockaddr *)&to, sizeof to), EINPROGRESS);
    FAILS(ifc.connect(U, fd, (struct sockaddr *)&to, sizeof to), EALREADY);
    FAILS(ifc.write(U, fd, "x", 1), EAGAIN);
    struct segment s = expect(NULL);
    EQUAL(s.flags, SYN);
    EQUAL(s.to, THEIRS);
    EQUAL(s.len, 0);
    EQUAL(option(&s, 2), 1460);
    EQUAL(option(&s, 4), 1);
    CHECK(option(&s, 3) >= 0 && option(&s, 8) >= 0);
    struct segment r = syn(THEIRS, s.from, SYN | ACK, 7000, s.seq + 1);
    send_segment(&r);
    struct peer p = {.port = THEIRS, .ours = s.from, .seq = 7001, .ack = s.seq + 1};
    s = expect(NULL);
    EQUAL(s.flags, ACK);
    EQUAL(s.ack, 7001);
    EQUAL(s.seq, p.ack);
    EQUAL(get(fd, SOL_SOCKET, SO_ERROR), 0);
    EQUAL(ifc.connect(U, fd, (struct sockaddr *)&to, sizeof to), 0);
    FAILS(ifc.connect(U, fd, (struct sockaddr *)&to, sizeof to), EISCONN);
    FAILS(ifc.read(U, fd, buffer, 1), EAGAIN);
    EQUAL(ifc.shutdown(U, fd, SHUT_WR), 0);
    s = expect(NULL);
    EQUAL(s.flags, FIN | ACK);
    FAILS(ifc.write(U, fd, "x", 1), EPIPE);
    p.ack++;
    inject(&p, ACK, NULL, 0);
    /* Half-closed: data still comes in. */
    inject(&p, ACK | PSH, "late", 4);
    p.seq += 4;
    EQUAL(ifc.read(U, fd, buffer, sizeof buffer), 4);
    s = expect(NULL);
    EQUAL(s.ack, p.seq);
    inject(&p, ACK | FIN, NULL, 0);
    p.seq++;
    s = expect(NULL);
    EQUAL(s.flags, ACK);
    EQUAL(s.ack, p.seq);
    EQUAL(ifc.read(U, fd, buffer, sizeof buffer), 0);
    EQUAL(ifc.close(U, fd), 0);
    /* TIME-WAIT ends in silence. */
    expect_nothing();
}

static void lost_data_is_sent_again_in_time(void) {
    struct peer p;
    int fd = accepted(&p);
    long long first, again, third;
    EQUAL(ifc.write(U, fd, "data", 4), 4);
    struct segment s = expect(&first);
    EQUAL(s.len, 4);
    s = expect(&again);
    EQUAL(s.len, 4);
    EQUAL(s.seq, p.ack);
    /* The least time-out is 200 ms; a probe of the tail comes no later than the time-out. */
    CHECK(again - first >= 1 * MS && again - first <= 260 * MS);
    s = expect(&third);
    EQUAL(s.seq, p.ack);
    CHECK(third - again >= 150 * MS && third - again <= 520 * MS);
    long long before = now();
    CHECK(before >= third && before <= third + 10);
    p.ack += 4;
    inject(&p, ACK, NULL, 0);
    expect_nothing();
    EQUAL(ifc.ioctl(U, fd, SIOCOUTQ, (int *)buffer), 0);
    EQUAL(*(int *)buffer, 0);
}

static void syn_is_sent_again_after_a_second(void) {
    int fd = ifc.socket(U, AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in to = address(REMOTE, THEIRS);
    set(fd, IPPROTO_TCP, TCP_SYNCNT, 2);
    nonblocking(fd);
    long long start = now(), at;
    FAILS(ifc.connect(U, fd, (struct sockaddr *)&to, sizeof to), EINPROGRESS);
    struct segment s = expect(&at);
    CHECK(at - start <= 5);
    uint32_t seq = s.seq;
    const long long due[] = {1000 * MS, 3000 * MS};
    for (int i = 0; i < 2; i++) {
        s = expect(&at);
        EQUAL(s.flags & ~0xc0, SYN);
        EQUAL(s.seq, seq);
        CHECK(at - start >= due[i] && at - start <= due[i] + 5 * MS);
    }
    expect_nothing();
    CHECK(now() - start >= 7000 * MS && now() - start < 8000 * MS);
    struct pollfd f = {.fd = fd, .events = POLLIN | POLLOUT};
    EQUAL(ifc.poll(U, &f, 1, 0), 1);
    CHECK(f.revents & POLLERR && f.revents & POLLHUP);
    EQUAL(get(fd, SOL_SOCKET, SO_ERROR), ETIMEDOUT);
    EQUAL(get(fd, SOL_SOCKET, SO_ERROR), 0);
}

static void refused_and_reset(void) {
    int fd = ifc.socket(U, AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in to = address(REMOTE, THEIRS);
    nonblocking(fd);
    FAILS(ifc.connect(U, fd, (struct sockaddr *)&to, sizeof to), EINPROGRESS);
    struct segment s = expect(NULL);
    struct peer p = {.port = THEIRS, .ours = s.from, .seq = 0, .ack = s.seq + 1};
    inject(&p, RST | ACK, NULL, 0);
    FAILS(ifc.connect(U, fd, (struct sockaddr *)&to, sizeof to), ECONNREFUSED);
    EQUAL(ifc.close(U, fd), 0);

    fd = accepted(&p);
    inject(&p, ACK | PSH, "before", 6);
    p.seq += 6;
    inject(&p, RST, NULL, 0);
    /* What was not read is lost, the reset is told once. */
    FAILS(ifc.read(U, fd, buffer, sizeof buffer), ECONNRESET);
    EQUAL(ifc.read(U, fd, buffer, sizeof buffer), 0);
    FAILS(ifc.write(U, fd, "x", 1), EPIPE);
    EQUAL(ifc.close(U, fd), 0);

    /* A reset from a peer that had finished: the end of its data is read all the same. */
    drain();
    fd = accepted(&p);
    inject(&p, ACK | FIN, NULL, 0);
    p.seq++;
    inject(&p, RST, NULL, 0);
    EQUAL(ifc.read(U, fd, buffer, sizeof buffer), 0);
    EQUAL(get(fd, SOL_SOCKET, SO_ERROR), EPIPE);
    EQUAL(ifc.read(U, fd, buffer, sizeof buffer), 0);
    EQUAL(ifc.close(U, fd), 0);
}

static void closing_with_unread_data_resets(void) {
    struct peer p;
    int fd = accepted(&p);
    inject(&p, ACK | PSH, "unread", 6);
    EQUAL(ifc.ioctl(U, fd, SIOCINQ, (int *)buffer), 0);
    EQUAL(*(int *)buffer, 6);
    EQUAL(ifc.close(U, fd), 0);
    struct segment s;
    do
        s = expect(NULL);
    while (!(s.flags & RST));
    EQUAL(s.seq, p.ack);
    expect_nothing();
    /* So does SO_LINGER with time zero. */
    fd = accepted(&p);
    struct linger now_ = {1, 0};
    EQUAL(ifc.setsockopt(U, fd, SOL_SOCKET, SO_LINGER, &now_, sizeof now_), 0);
    EQUAL(ifc.close(U, fd), 0);
    s = expect(NULL);
    CHECK(s.flags & RST);
    expect_nothing();
}

/* Blocking calls in a second thread, as packetdrill makes them. */
struct blocked {
    pthread_t thread;
    int fd, kind;
    volatile pid_t id;
    ssize_t result;
    int error;
    long long done_at;
};
enum { ACCEPT, CONNECT, READ, WRITE, EPOLL, CLOSE };

static void *block(void *argument) {
    struct blocked *b = argument;
    static uint8_t much[1 << 16];
    struct sockaddr_in to = address(REMOTE, THEIRS);
    struct epoll_event event;
    b->id = gettid();
    errno = 0;
    switch (b->kind) {
    case ACCEPT: b->result = ifc.accept(U, b->fd, NULL, NULL); break;
    case CONNECT: b->result = ifc.connect(U, b->fd, (struct sockaddr *)&to, sizeof to); break;
    case READ: b->result = ifc.read(U, b->fd, much, sizeof much); break;
    case WRITE: b->result = ifc.write(U, b->fd, much, sizeof much); break;
    case EPOLL: b->result = ifc.epoll_wait(U, b->fd, &event, 1, 50); break;
    case CLOSE: b->result = ifc.close(U, b->fd); break;
    }
    b->error = errno;
    if (b->error != EBADF) /* else there is no clock any more */
        b->done_at = now();
    return NULL;
}

/* Whether the kernel says that the thread sleeps. */
static bool sleeps(pid_t id) {
    char path[64], line[512] = {0};
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", id);
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    char *text = fgets(line, sizeof line, file);
    fclose(file);
    char *end = text ? strrchr(text, ')') : NULL;
    return end && end[1] == ' ' && end[2] == 'S';
}

static void start(struct blocked *b, int kind, int fd) {
    memset(b, 0, sizeof *b);
    b->kind = kind;
    b->fd = fd;
    CHECK(pthread_create(&b->thread, NULL, block, b) == 0);
    while (b->id == 0)
        sched_yield();
    /* As packetdrill does: the script goes on when the thread sleeps, several times in a row. */
    for (int calm = 0; calm < 5; calm = sleeps(b->id) ? calm + 1 : 0)
        usleep(1000);
}

static ssize_t join(struct blocked *b) {
    CHECK(pthread_join(b->thread, NULL) == 0);
    return b->result;
}

static void blocking_calls_in_a_second_thread(void) {
    int fd = listener();
    struct blocked b;
    start(&b, ACCEPT, fd);
    EQUAL(ifc.usleep(U, 500000), 0);
    struct peer p = opened(THEIRS);
    int child = (int)join(&b);
    CHECK(child > fd);
    start(&b, READ, child);
    EQUAL(ifc.usleep(U, 100000), 0);
    long long before = now();
    inject(&p, ACK | PSH, "wake", 4);
    EQUAL(join(&b), 4);
    CHECK(b.done_at >= before && b.done_at <= before + 20);
    p.seq += 4;
    /* More than the send buffer holds: the write waits for acknowledgements. */
    expect(NULL);
    set(child, SOL_SOCKET, SO_SNDBUF, 8192);
    start(&b, WRITE, child);
    uint32_t first = p.ack, sent = 0;
    while (sent < 1 << 16) {
        struct segment s = expect(NULL);
        if (s.seq + s.len - first > sent)
            sent = s.seq + (uint32_t)s.len - first;
        p.ack = first + sent;
        inject(&p, ACK, NULL, 0);
    }
    EQUAL(join(&b), 1 << 16);
    EQUAL(sent, 1 << 16);
    /* A reset wakes the reader. */
    start(&b, READ, child);
    inject(&p, RST, NULL, 0);
    EQUAL(join(&b), -1);
    EQUAL(b.error, ECONNRESET);
    /* connect. */
    int client = ifc.socket(U, AF_INET, SOCK_STREAM, 0);
    start(&b, CONNECT, client);
    /* The round trips above took no time: the tail may have been probed for at once. */
    struct segment s;
    do
        s = expect(NULL);
    while (s.flags == (ACK | PSH));
    EQUAL(s.flags, SYN);
    struct segment r = syn(THEIRS, s.from, SYN | ACK, 1, s.seq + 1);
    send_segment(&r);
    EQUAL(join(&b), 0);
    s = expect(NULL);
    EQUAL(s.flags, ACK);
    /* close with SO_LINGER waits until the FIN is acknowledged. */
    struct linger long_ = {1, 10};
    EQUAL(ifc.setsockopt(U, client, SOL_SOCKET, SO_LINGER, &long_, sizeof long_), 0);
    struct peer q = {.port = THEIRS, .ours = s.from, .seq = 2, .ack = s.seq};
    start(&b, CLOSE, client);
    s = expect(NULL);
    EQUAL(s.flags, FIN | ACK);
    q.ack++;
    inject(&q, ACK, NULL, 0);
    EQUAL(join(&b), 0);
    /* A time limit of a blocked thread is a timer: time stops there. */
    int epoll = ifc.epoll_create(U, 1);
    before = now();
    start(&b, EPOLL, epoll);
    EQUAL(ifc.usleep(U, 200000), 0);
    EQUAL(join(&b), 0);
    CHECK(b.done_at - before >= 50 * MS);
    /* Freeing ends what still waits (main does, with this thread blocked). */
    start(&b, ACCEPT, fd);
    ifc.free(U);
    EQUAL(join(&b), -1);
    init(NULL, &ifc);
}

static void poll_and_epoll(void) {
    int fd = listener(), epoll = ifc.epoll_create(U, 1);
    CHECK(epoll >= 0);
    struct pollfd f = {.fd = fd, .events = POLLIN};
    EQUAL(ifc.poll(U, &f, 1, 0), 0);
    long long before = now();
    EQUAL(ifc.poll(U, &f, 1, 30), 0);
    CHECK(now() - before >= 30 * MS && now() - before <= 31 * MS);
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = 7}, got[4];
    EQUAL(ifc.epoll_ctl(U, epoll, EPOLL_CTL_ADD, fd, &e), 0);
    FAILS(ifc.epoll_ctl(U, epoll, EPOLL_CTL_ADD, fd, &e), EEXIST);
    EQUAL(ifc.epoll_wait(U, epoll, got, 4, 0), 0);
    struct peer p = opened(THEIRS);
    EQUAL(ifc.poll(U, &f, 1, 0), 1);
    EQUAL(f.revents, POLLIN);
    EQUAL(ifc.epoll_wait(U, epoll, got, 4, 0), 1);
    EQUAL(got[0].events, EPOLLIN);
    EQUAL(got[0].data.u64, 7);
    int child = ifc.accept(U, fd, NULL, NULL);
    EQUAL(ifc.epoll_wait(U, epoll, got, 4, 0), 0);
    /* Edge-triggered: told once for each arrival, whether read or not. */
    e.events = EPOLLIN | EPOLLET | EPOLLRDHUP;
    e.data.u64 = 8;
    EQUAL(ifc.epoll_ctl(U, epoll, EPOLL_CTL_ADD, child, &e), 0);
    EQUAL(ifc.epoll_wait(U, epoll, got, 4, 0), 0);
    inject(&p, ACK | PSH, "one", 3);
    p.seq += 3;
    EQUAL(ifc.epoll_wait(U, epoll, got, 4, 0), 1);
    EQUAL(got[0].events, EPOLLIN);
    EQUAL(got[0].data.u64, 8);
    EQUAL(ifc.epoll_wait(U, epoll, got, 4, 0), 0);
    inject(&p, ACK | PSH, "two", 3);
    p.seq += 3;
    EQUAL(ifc.epoll_wait(U, epoll, got, 4, 0), 1);
    EQUAL(ifc.epoll_wait(U, epoll, got, 4, 0), 0);
    /* Level-triggered: told as long as it is there. */
    e.events = EPOLLIN | EPOLLOUT;
    EQUAL(ifc.epoll_ctl(U, epoll, EPOLL_CTL_MOD, child, &e), 0);
    for (int i = 0; i < 2; i++) {
        EQUAL(ifc.epoll_wait(U, epoll, got, 4, 0), 1);
        EQUAL(got[0].events, EPOLLIN | EPOLLOUT);
    }
    e.events = EPOLLIN | EPOLLONESHOT;
    EQUAL(ifc.epoll_ctl(U, epoll, EPOLL_CTL_MOD, child, &e), 0);
    EQUAL(ifc.epoll_wait(U, epoll, got, 4, 0), 1);
    EQUAL(ifc.epoll_wait(U, epoll, got, 4, 0), 0);
    EQUAL(ifc.read(U, child, buffer, sizeof buffer), 6);
    e.events = EPOLLIN | EPOLLRDHUP;
    EQUAL(ifc.epoll_ctl(U, epoll, EPOLL_CTL_MOD, child, &e), 0);
    EQUAL(ifc.epoll_wait(U, epoll, got, 4, 0), 0);
    inject(&p, ACK | FIN, NULL, 0);
    EQUAL(ifc.epoll_wait(U, epoll, got, 4, 0), 1);
    EQUAL(got[0].events, EPOLLIN | EPOLLRDHUP);
    EQUAL(ifc.shutdown(U, child, SHUT_WR), 0);
    struct pollfd both[] = {{.fd = child, .events = POLLIN}, {.fd = 999, .events = POLLIN}, {.fd = -1}};
    EQUAL(ifc.poll(U, both, 3, -1), 2);
    CHECK(both[0].revents & POLLHUP && both[0].revents & POLLIN);
    EQUAL(both[1].revents, POLLNVAL);
    EQUAL(ifc.epoll_ctl(U, epoll, EPOLL_CTL_DEL, child, NULL), 0);
    FAILS(ifc.epoll_ctl(U, epoll, EPOLL_CTL_DEL, child, NULL), ENOENT);
    EQUAL(ifc.epoll_wait(U, epoll, got, 4, 0), 0);
}

static struct tcp_info info(int fd) {
    struct tcp_info i;
    socklen_t len = sizeof i;
    memset(&i, 0xff, sizeof i);
    EQUAL(ifc.getsockopt(U, fd, IPPROTO_TCP, TCP_INFO, &i, &len), 0);
    CHECK(len >= offsetof(struct tcp_info, tcpi_bytes_received) + 8);
    return i;
}

static void options_and_tcp_info(void) {
    struct peer p;
    int fd = listener();
    EQUAL(info(fd).tcpi_state, 10);
    EQUAL(ifc.close(U, fd), 0);
    fd = accepted(&p);
    EQUAL(get(fd, IPPROTO_TCP, TCP_NODELAY), 0);
    set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    EQUAL(get(fd, IPPROTO_TCP, TCP_NODELAY), 1);
    EQUAL(get(fd, IPPROTO_TCP, TCP_MAXSEG), 1460);
    set(fd, SOL_SOCKET, SO_SNDBUF, 20000);
    EQUAL(get(fd, SOL_SOCKET, SO_SNDBUF), 40000);
    set(fd, SOL_SOCKET, SO_RCVBUF, 30000);
    EQUAL(get(fd, SOL_SOCKET, SO_RCVBUF), 60000);
    set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 3000);
    EQUAL(get(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), 3000);
    EQUAL(get(fd, SOL_SOCKET, SO_TYPE), SOCK_STREAM);
    EQUAL(get(fd, SOL_SOCKET, SO_ACCEPTCONN), 0);
    char name[16] = {0};
    socklen_t len = sizeof name;
    EQUAL(ifc.getsockopt(U, fd, IPPROTO_TCP, TCP_CONGESTION, name, &len), 0);
    CHECK(strcmp(name, "cubic") == 0);
    EQUAL(ifc.setsockopt(U, fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4), 0);
    len = sizeof name;
    EQUAL(ifc.getsockopt(U, fd, IPPROTO_TCP, TCP_CONGESTION, name, &len), 0);
    CHECK(strcmp(name, "reno") == 0);
    FAILS(ifc.setsockopt(U, fd, IPPROTO_TCP, TCP_CONGESTION, "none", 4), ENOENT);
    int number = 1;
    FAILS(ifc.setsockopt(U, fd, IPPROTO_TCP, TCP_CORK, &number, sizeof number), ENOPROTOOPT);
    FAILS(ifc.setsockopt(U, fd, IPPROTO_TCP, TCP_NODELAY, &number, 3), EINVAL);
    set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 5);
    set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 2);
    set(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
    EQUAL(get(fd, IPPROTO_TCP, TCP_KEEPIDLE), 5);

    struct tcp_info i = info(fd);
    EQUAL(i.tcpi_state, 1);
    EQUAL(i.tcpi_snd_mss, 1460);
    EQUAL(i.tcpi_snd_cwnd, 10);
    EQUAL(i.tcpi_unacked, 0);
    EQUAL(i.tcpi_pmtu, 1500);
    EQUAL(i.tcpi_options, TCPI_OPT_SACK);
    EQUAL(i.tcpi_snd_ssthresh, 0x7fffffff);
    EQUAL(ifc.write(U, fd, buffer, 16000), 16000);
    for (int k = 0; k < 10; k++)
        EQUAL(expect(NULL).len, 1460);
    i = info(fd);
    EQUAL(i.tcpi_unacked, 10);
    EQUAL(i.tcpi_notsent_bytes, 1400);
    EQUAL(info(fd).tcpi_rtt / 1000, 10);
    EQUAL(ifc.usleep(U, 12000), 0);
    p.ack += 14600;
    inject(&p, ACK, NULL, 0);
    EQUAL(expect(NULL).len, 1400);
    i = info(fd);
    EQUAL(i.tcpi_unacked, 1);
    EQUAL(i.tcpi_bytes_acked, 14600);
    CHECK(i.tcpi_rtt > 10100 && i.tcpi_rtt < 12000 && i.tcpi_min_rtt >= 10000 && i.tcpi_min_rtt < 10100);
    CHECK(i.tcpi_snd_cwnd > 10);
    p.ack += 1400;
    inject(&p, ACK, NULL, 0);
    EQUAL(info(fd).tcpi_unacked, 0);
    /* Keep-alive: after 5 s of silence, and then every 2 s; the fourth time the connection is given up. */
    set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    EQUAL(get(fd, SOL_SOCKET, SO_KEEPALIVE), 1);
    set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 0);
    long long silent = now(), at;
    struct segment s;
    for (int k = 0; k < 3; k++) {
        s = expect(&at);
        EQUAL(s.seq, p.ack - 1);
        CHECK(at - silent >= (5000 + k * 2000) * MS - 30 * MS && at - silent <= (5000 + k * 2000) * MS + 30 * MS);
    }
    s = expect(&at);
    CHECK(s.flags & RST);
    FAILS(ifc.read(U, fd, buffer, 1), ETIMEDOUT);
}

static void errors_as_on_linux(void) {
    struct sockaddr_in a = address(LOCAL, OURS), other = address(0x0a000001, OURS);
    FAILS(ifc.socket(U, AF_UNIX, SOCK_STREAM, 0), EAFNOSUPPORT);
    FAILS(ifc.socket(U, AF_INET, SOCK_STREAM, IPPROTO_UDP), EPROTONOSUPPORT);
    FAILS(ifc.close(U, 77), EBADF);
    FAILS(ifc.read(U, -1, buffer, 1), EBADF);
    int fd = ifc.socket(U, AF_INET, SOCK_STREAM, 0);
    FAILS(ifc.bind(U, fd, (struct sockaddr *)&other, sizeof other), EADDRNOTAVAIL);
    FAILS(ifc.bind(U, fd, (struct sockaddr *)&a, 4), EINVAL);
    FAILS(ifc.bind(U, fd, NULL, sizeof a), EFAULT);
    FAILS(ifc.read(U, fd, buffer, 1), ENOTCONN);
    FAILS(ifc.write(U, fd, "x", 1), EPIPE);
    FAILS(ifc.shutdown(U, fd, SHUT_WR), ENOTCONN);
    FAILS(ifc.accept(U, fd, NULL, NULL), EINVAL);
    EQUAL(ifc.bind(U, fd, (struct sockaddr *)&a, sizeof a), 0);
    FAILS(ifc.bind(U, fd, (struct sockaddr *)&a, sizeof a), EINVAL);
    int second = ifc.socket(U, AF_INET, SOCK_STREAM, 0);
    FAILS(ifc.bind(U, second, (struct sockaddr *)&a, sizeof a), EADDRINUSE);
    EQUAL(ifc.listen(U, fd, 1), 0);
    nonblocking(fd);
    FAILS(ifc.accept(U, fd, NULL, NULL), EAGAIN);
    FAILS(ifc.netdev_send(U, "\0no packet", 9), EINVAL);
    FAILS(ifc.fcntl(U, fd, 12345, 0), EINVAL);
    FAILS(ifc.poll(U, NULL, 2, 0), EFAULT);
    /* SO_RCVTIMEO, in the thread that drives the clock. */
    struct peer p;
    EQUAL(ifc.close(U, fd), 0);
    fd = accepted(&p);
    struct timeval limit = {0, 250000};
    EQUAL(ifc.setsockopt(U, fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    long long before = now();
    FAILS(ifc.read(U, fd, buffer, 1), EAGAIN);
    CHECK(now() - before >= 250 * MS && now() - before <= 251 * MS);
    FAILS(ifc.recv(U, fd, buffer, 1, MSG_DONTWAIT), EAGAIN);
    FAILS(ifc.send(U, fd, "x", 1, MSG_OOB), EOPNOTSUPP);
    /* AF_UNSPEC takes the connection away, and the socket can be used again. */
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    EQUAL(ifc.connect(U, fd, &none, sizeof none), 0);
    CHECK(expect(NULL).flags & RST);
    FAILS(ifc.read(U, fd, buffer, 1), ENOTCONN);
}

static void vectors_peeking_and_messages(void) {
    struct peer p;
    int fd = accepted(&p);
    inject(&p, ACK | PSH, "abcdef", 6);
    p.seq += 6;
    EQUAL(ifc.recv(U, fd, buffer, 4, MSG_PEEK), 4);
    CHECK(memcmp(buffer, "abcd", 4) == 0);
    uint8_t x[2], y[8];
    struct iovec in[] = {{x, 2}, {y, 8}};
    EQUAL(ifc.readv(U, fd, in, 2), 4);
    CHECK(memcmp(x, "ab", 2) == 0 && memcmp(y, "cd", 2) == 0);
    struct msghdr m = {.msg_iov = in, .msg_iovlen = 2};
    EQUAL(ifc.recvmsg(U, fd, &m, 0), 2);
    CHECK(memcmp(x, "ef", 2) == 0);
    struct segment s = expect(NULL);
    EQUAL(s.ack, p.seq);
    struct iovec out[] = {{"gh", 2}, {"ijk", 3}};
    EQUAL(ifc.writev(U, fd, out, 2), 5);
    s = expect(NULL);
    CHECK(s.len == 5 && memcmp(s.data, "ghijk", 5) == 0);
    p.ack += 5;
    inject(&p, ACK, NULL, 0);
    struct msghdr n = {.msg_iov = out, .msg_iovlen = 1};
    EQUAL(ifc.sendmsg(U, fd, &n, 0), 2);
    s = expect(NULL);
    CHECK(s.len == 2 && memcmp(s.data, "gh", 2) == 0);
}

static void splice_through_a_pipe(void) {
    struct peer p;
    int fd = accepted(&p), ends[2];
    EQUAL(ifc.pipe(U, ends), 0);
    FAILS(ifc.splice(U, fd, NULL, fd, NULL, 10, 0), EINVAL);
    FAILS(ifc.splice(U, fd, NULL, ends[1], NULL, 10, SPLICE_F_NONBLOCK), EAGAIN);
    inject(&p, ACK | PSH, "through", 7);
    p.seq += 7;
    EQUAL(ifc.splice(U, fd, NULL, ends[1], NULL, 100, 0), 7);
    EQUAL(ifc.splice(U, ends[0], NULL, fd, NULL, 100, 0), 7);
    struct segment s;
    do
        s = expect(NULL);
    while (s.len == 0);
    CHECK(s.len == 7 && memcmp(s.data, "through", 7) == 0);
    int epoll = ifc.epoll_create(U, 1);
    struct epoll_event e = {.events = EPOLLIN | EPOLLET}, got;
    EQUAL(ifc.epoll_ctl(U, epoll, EPOLL_CTL_ADD, ends[0], &e), 0);
    EQUAL(ifc.epoll_wait(U, epoll, &got, 1, 0), 0);
    EQUAL(ifc.write(U, ends[1], "pi", 2), 2);
    EQUAL(ifc.epoll_wait(U, epoll, &got, 1, 0), 1);
    EQUAL(ifc.epoll_wait(U, epoll, &got, 1, 0), 0);
    EQUAL(ifc.write(U, ends[1], "pe", 2), 2);
    EQUAL(ifc.epoll_wait(U, epoll, &got, 1, 0), 1);
    EQUAL(ifc.read(U, ends[0], buffer, sizeof buffer), 4);
    EQUAL(ifc.close(U, ends[1]), 0);
    EQUAL(ifc.read(U, ends[0], buffer, sizeof buffer), 0);
}

static void datagrams(void) {
    int fd = ifc.socket(U, AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in a = address(LOCAL, 5000), to = address(REMOTE, 6000), from;
    socklen_t len = sizeof from;
    EQUAL(ifc.bind(U, fd, (struct sockaddr *)&a, sizeof a), 0);
    nonblocking(fd);
    FAILS(ifc.read(U, fd, buffer, 10), EAGAIN);
    FAILS(ifc.write(U, fd, "x", 1), EDESTADDRREQ);
    uint8_t packet[256], sent[256];
    EQUAL(ifc.netdev_send(U, packet, build_udp(6000, 5000, "datagram", 8, packet)), 0);
    struct pollfd f = {.fd = fd, .events = POLLIN};
    EQUAL(ifc.poll(U, &f, 1, 0), 1);
    EQUAL(ifc.recvfrom(U, fd, buffer, 4, MSG_TRUNC, (struct sockaddr *)&from, &len), 8);
    EQUAL(ntohs(from.sin_port), 6000);
    EQUAL(ifc.sendto(U, fd, "back", 4, 0, (struct sockaddr *)&to, sizeof to), 4);
    size_t count = sizeof sent;
    long long at;
    EQUAL(ifc.netdev_receive(U, sent, &count, &at), 0);
    EQUAL(count, 32);
    EQUAL(sent[9], 17);
    CHECK(memcmp(sent + 28, "back", 4) == 0);
    /* Nobody has the port there: a connected socket hears of it. */
    EQUAL(ifc.connect(U, fd, (struct sockaddr *)&to, sizeof to), 0);
    EQUAL(ifc.write(U, fd, "who?", 4), 4);
    count = sizeof sent;
    EQUAL(ifc.netdev_receive(U, sent, &count, &at), 0);
    EQUAL(ifc.netdev_send(U, packet, build_icmp(3, 3, sent, packet)), 0);
    EQUAL(get(fd, SOL_SOCKET, SO_ERROR), ECONNREFUSED);
    FAILS(ifc.write(U, fd, buffer, 2000), EMSGSIZE);
}

static void clock_is_virtual(void) {
    long long a = now(), b = now();
    EQUAL(b - a, 1);
    EQUAL(ifc.usleep(U, 3600000000u), 0);
    EQUAL(now() - b, 3600000001LL);
    expect_nothing();
}

static void flags_are_obeyed(void) {
    ifc.free(U);
    init("--ip_version=ipv4 --mtu=600 --timestamps=off --sack=0 --window_scaling=off", &ifc);
    CHECK(U != NULL);
    int fd = ifc.socket(U, AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in to = address(REMOTE, THEIRS);
    nonblocking(fd);
    FAILS(ifc.connect(U, fd, (struct sockaddr *)&to, sizeof to), EINPROGRESS);
    struct segment s = expect(NULL);
    EQUAL(option(&s, 2), 560);
    EQUAL(s.options_len, 4);
    ifc.free(U);
    /* What cannot be used gives no stack, and every call says so. */
    init("--mtu=many", &ifc);
    CHECK(U == NULL);
    FAILS(ifc.socket(U, AF_INET, SOCK_STREAM, 0), EFAULT);
    ifc.free(U);
    init(NULL, &ifc);
}

static void six_and_mapped_addresses(void) {
    /* IPv4 through a socket of IPv6: addresses are mapped. */
    int fd = ifc.socket(U, AF_INET6, SOCK_STREAM, 0);
    struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_port = htons(OURS)}, from;
    socklen_t len = sizeof from;
    EQUAL(ifc.bind(U, fd, (struct sockaddr *)&any, sizeof any), 0);
    EQUAL(ifc.listen(U, fd, 1), 0);
    opened(THEIRS);
    CHECK(ifc.accept(U, fd, (struct sockaddr *)&from, &len) > fd);
    EQUAL(from.sin6_family, AF_INET6);
    CHECK(IN6_IS_ADDR_V4MAPPED(&from.sin6_addr));
    /* IPv6 itself. */
    int client = ifc.socket(U, AF_INET6, SOCK_STREAM, 0);
    struct sockaddr_in6 to = {.sin6_family = AF_INET6, .sin6_port = htons(THEIRS)};
    CHECK(inet_pton(AF_INET6, "fd3d:fa7b:d17d::1", &to.sin6_addr) == 1);
    nonblocking(client);
    FAILS(ifc.connect(U, client, (struct sockaddr *)&to, sizeof to), EINPROGRESS);
    size_t count = sizeof buffer;
    long long at;
    EQUAL(ifc.netdev_receive(U, buffer, &count, &at), 0);
    CHECK(count >= 60 && buffer[0] >> 4 == 6 && buffer[6] == 6);
    CHECK(memcmp(buffer + 24, &to.sin6_addr, 16) == 0);
    EQUAL(buffer[40 + 13], SYN);
}

static const struct {
    const char *name;
    void (*run)(void);
} scenarios[] = {
#define SCENARIO(name) {#name, name}
    SCENARIO(passive_open_data_and_close),
    SCENARIO(active_open_and_close_first),
    SCENARIO(lost_data_is_sent_again_in_time),
    SCENARIO(syn_is_sent_again_after_a_second),
    SCENARIO(refused_and_reset),
    SCENARIO(closing_with_unread_data_resets),
    SCENARIO(blocking_calls_in_a_second_thread),
    SCENARIO(poll_and_epoll),
    SCENARIO(options_and_tcp_info),
    SCENARIO(errors_as_on_linux),
    SCENARIO(vectors_peeking_and_messages),
    SCENARIO(splice_through_a_pipe),
    SCENARIO(datagrams),
    SCENARIO(clock_is_virtual),
    SCENARIO(flags_are_obeyed),
    SCENARIO(six_and_mapped_addresses),
};

int main(int argc, char **argv) {
    if (argc < 3) {
        for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
            puts(scenarios[i].name);
        return argc < 2 ? 2 : 0;
    }
    /* As packetdrill loads it. */
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE | RTLD_DEEPBIND);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    *(void **)&init = dlsym(library, "packetdrill_interface_init");
    CHECK(init != NULL);
    alarm(60);
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        if (strcmp(argv[2], scenarios[i].name) == 0) {
            init("", &ifc);
            CHECK(U != NULL);
            scenarios[i].run();
            ifc.free(U);
            return 0;
        }
    }
    fprintf(stderr, "%s: no such scenario\n", argv[2]);
    return 2;
}
