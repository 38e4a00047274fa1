#include "packet.h"

#include <string.h>

static void put16(uint8_t *p, uint32_t v) {
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

static void put32(uint8_t *p, uint32_t v) {
    put16(p, v >> 16);
    put16(p + 2, v);
}

static uint16_t get16(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }

static uint32_t get32(const uint8_t *p) { return (uint32_t)get16(p) << 16 | get16(p + 2); }

static uint32_t sum(uint32_t so_far, const uint8_t *p, size_t len) {
    for (size_t i = 0; i < len; i++)
        so_far += i % 2 ? p[i] : (uint32_t)p[i] << 8;
    while (so_far >> 16)
        so_far = (so_far & 0xffff) + (so_far >> 16);
    return so_far;
}

/* The sum over an IPv4 pseudo header and the bytes after the header. */
static uint32_t transport_sum(const uint8_t *packet, size_t len) {
    uint8_t tail[4] = {0, packet[9], 0, 0};
    put16(tail + 2, (uint32_t)(len - 20));
    return sum(sum(sum(0, packet + 12, 8), tail, 4), packet + 20, len - 20);
}

static size_t finish_ip(uint8_t *packet, uint8_t protocol, size_t len) {
    memset(packet, 0, 20);
    packet[0] = 0x45;
    put16(packet + 2, (uint32_t)len);
    packet[8] = 64;
    packet[9] = protocol;
    put32(packet + 12, REMOTE);
    put32(packet + 16, LOCAL);
    put16(packet + 10, ~sum(0, packet, 20));
    return len;
}

size_t build_tcp(const struct segment *s, uint8_t *packet) {
    size_t header = 20 + (s->options_len + 3) / 4 * 4, len = 20 + header + s->len;
    uint8_t *tcp = packet + 20;
    memset(tcp, 0, header);
    put16(tcp, s->from);
    put16(tcp + 2, s->to);
    put32(tcp + 4, s->seq);
    put32(tcp + 8, s->ack);
    tcp[12] = (uint8_t)(header / 4 << 4);
    tcp[13] = s->flags;
    put16(tcp + 14, s->window);
    memcpy(tcp + 20, s->options, s->options_len);
    if (s->len)
        memcpy(tcp + header, s->data, s->len);
    finish_ip(packet, 6, len);
    put16(tcp + 16, ~transport_sum(packet, len));
    return len;
}

int parse_tcp(const uint8_t *packet, size_t len, struct segment *s) {
    if (len < 40 || packet[0] != 0x45 || packet[9] != 6 || get16(packet + 2) != len)
        return -1;
    if (get32(packet + 12) != LOCAL || get32(packet + 16) != REMOTE)
        return -1;
    if (sum(0, packet, 20) != 0xffff || transport_sum(packet, len) != 0xffff)
        return -1;
    const uint8_t *tcp = packet + 20;
    size_t header = (size_t)(tcp[12] >> 4) * 4;
    if (header < 20 || 20 + header > len)
        return -1;
    memset(s, 0, sizeof *s);
    s->from = get16(tcp);
    s->to = get16(tcp + 2);
    s->seq = get32(tcp + 4);
    s->ack = get32(tcp + 8);
    s->flags = tcp[13];
    s->window = get16(tcp + 14);
    s->options_len = header - 20;
    memcpy(s->options, tcp + 20, s->options_len);
    s->data = tcp + header;
    s->len = len - 20 - header;
    return 0;
}

size_t build_udp(uint16_t from, uint16_t to, const void *data, size_t len, uint8_t *packet) {
    uint8_t *udp = packet + 20;
    put16(udp, from);
    put16(udp + 2, to);
    put16(udp + 4, (uint32_t)(8 + len));
    put16(udp + 6, 0);
    memcpy(udp + 8, data, len);
    finish_ip(packet, 17, 28 + len);
    put16(udp + 6, ~transport_sum(packet, 28 + len));
    return 28 + len;
}

size_t build_icmp(uint8_t type, uint8_t code, const uint8_t *about, uint8_t *packet) {
    uint8_t *icmp = packet + 20;
    memset(icmp, 0, 8);
    icmp[0] = type;
    icmp[1] = code;
    memcpy(icmp + 8, about, 28);
    put16(icmp + 2, ~sum(0, icmp, 36));
    return finish_ip(packet, 1, 20 + 36);
}

long option(const struct segment *s, uint8_t kind) {
    for (size_t i = 0; i < s->options_len && s->options[i] != 0;) {
        if (s->options[i] == 1) {
            i++;
            continue;
        }
        if (i + 1 >= s->options_len || s->options[i + 1] < 2 || i + s->options[i + 1] > s->options_len)
            return -1;
        if (s->options[i] == kind)
            return s->options[i + 1] == 2 ? 1 : s->options[i + 1] == 3 ? s->options[i + 2] : get16(s->options + i + 2);
        i += s->options[i + 1];
    }
    return -1;
}
