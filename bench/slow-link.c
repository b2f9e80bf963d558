/* A TCP proxy that makes a near server a distant one: every byte comes a while later, and all connections together carry at
 * most this many bytes a second in each direction.
 *
 *     slow-link LISTEN-PORT SERVER-PORT DELAY-MS BYTES-PER-SECOND
 *
 * The delay is one way; the round trip is twice as long. A connection holds bytes in flight, as a long wire does: at most
 * twice what the rate carries in a round trip, and 1 MiB at least. It runs until it is killed.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PIECE (64 << 10)

typedef struct piece {
    struct piece *next;
    uint64_t due; /* in ns */
    size_t length;
    char bytes[PIECE];
} piece;

/* One direction of one connection. */
typedef struct {
    int from, to;
    struct direction *link;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    piece *first, **last;
    size_t held;
    int ended;
} way;

/* One direction of all connections. */
struct direction {
    pthread_mutex_t lock;
    uint64_t free_at; /* when the wire has carried everything so far, in ns */
};

static struct direction there, back;
static uint64_t delay_ns, rate;
static size_t most;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void sleep_until(uint64_t due) {
    struct timespec t = {(time_t)(due / 1000000000u), (long)(due % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
        ;
}

/* When the last of `length` bytes arrives that begin to be sent now. */
static uint64_t carried(struct direction *link, size_t length) {
    pthread_mutex_lock(&link->lock);
    uint64_t now = now_ns(), begin = link->free_at > now ? link->free_at : now;
    link->free_at = begin + (uint64_t)((double)length * 1e9 / (double)rate);
    uint64_t due = link->free_at + delay_ns;
    pthread_mutex_unlock(&link->lock);
    return due;
}

static void *receive(void *given) {
    way *w = given;
    for (;;) {
        piece *p = malloc(sizeof *p);
        ssize_t got = recv(w->from, p->bytes, PIECE, 0);
        pthread_mutex_lock(&w->lock);
        if (got <= 0) {
            w->ended = 1;
            pthread_cond_broadcast(&w->changed);
            pthread_mutex_unlock(&w->lock);
            free(p);
            return NULL;
        }
        p->next = NULL, p->length = (size_t)got;
        p->due = carried(w->link, p->length);
        while (w->held > most)
            pthread_cond_wait(&w->changed, &w->lock);
        *w->last = p, w->last = &p->next, w->held += p->length;
        pthread_cond_broadcast(&w->changed);
        pthread_mutex_unlock(&w->lock);
    }
}

static void *deliver(void *given) {
    way *w = given;
    for (;;) {
        pthread_mutex_lock(&w->lock);
        while (!w->first && !w->ended)
            pthread_cond_wait(&w->changed, &w->lock);
        piece *p = w->first;
        if (p && !(w->first = p->next))
            w->last = &w->first;
        pthread_mutex_unlock(&w->lock);
        if (!p) {
            shutdown(w->to, SHUT_WR);
            return NULL;
        }
        sleep_until(p->due);
        for (size_t at = 0; at < p->length;) {
            ssize_t sent = send(w->to, p->bytes + at, p->length - at, MSG_NOSIGNAL);
            if (sent <= 0) {
                /* The receiver has gone: the rest is dropped, so that the sender is not blocked. */
                shutdown(w->from, SHUT_RD);
                break;
            }
            at += (size_t)sent;
        }
        pthread_mutex_lock(&w->lock);
        w->held -= p->length;
        pthread_cond_broadcast(&w->changed);
        pthread_mutex_unlock(&w->lock);
        free(p);
    }
}

static way *new_way(int from, int to, struct direction *link) {
    way *w = calloc(1, sizeof *w);
    w->from = from, w->to = to, w->link = link, w->last = &w->first;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    return w;
}

static void *serve(void *given) {
    int *ends = given;
    way *up = new_way(ends[0], ends[1], &there), *down = new_way(ends[1], ends[0], &back);
    void *(*runs[4])(void *) = {receive, deliver, receive, deliver};
    way *ways[4] = {up, up, down, down};
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, runs[i], ways[i]);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    close(ends[0]), close(ends[1]);
    free(up), free(down), free(ends);
    return NULL;
}

int main(int count, char **words) {
    if (count != 5) {
        fprintf(stderr, "slow-link LISTEN-PORT SERVER-PORT DELAY-MS BYTES-PER-SECOND\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    delay_ns = strtoull(words[3], NULL, 10) * 1000000u, rate = strtoull(words[4], NULL, 10);
    most = (size_t)(4.0 * (double)rate * (double)delay_ns / 1e9);
    most = most < (1 << 20) ? 1 << 20 : most;
    pthread_mutex_init(&there.lock, NULL), pthread_mutex_init(&back.lock, NULL);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    address.sin_port = htons((uint16_t)atoi(words[1]));
    if (bind(listener, (void *)&address, sizeof address) != 0 || listen(listener, 64) != 0) {
        perror("slow-link");
        return 1;
    }
    for (;;) {
        int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (client < 0)
            continue;
        int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        address.sin_port = htons((uint16_t)atoi(words[2]));
        if (connect(server, (void *)&address, sizeof address) != 0) {
            close(client), close(server);
            continue;
        }
        setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        int *ends = malloc(2 * sizeof *ends);
        ends[0] = client, ends[1] = server;
        pthread_t thread;
        pthread_create(&thread, NULL, serve, ends);
        pthread_detach(thread);
    }
}
