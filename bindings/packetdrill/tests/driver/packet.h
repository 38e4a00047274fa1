/* IPv4 packets with TCP, UDP or ICMP, built and taken apart. Numbers are in host order. */
#ifndef PACKET_H
#define PACKET_H

#include <stddef.h>
#include <stdint.h>

#define LOCAL 0xc0a80001u  /* 192.168.0.1, the stack's */
#define REMOTE 0xc0000201u /* 192.0.2.1, the script's */

enum { FIN = 1, SYN = 2, RST = 4, PSH = 8, ACK = 16 };

struct segment {
    uint16_t from, to;
    uint32_t seq, ack;
    uint8_t flags;
    uint16_t window;
    uint8_t options[40];
    size_t options_len;
    const uint8_t *data;
    size_t len;
};

/* Writes the segment as an IP packet from REMOTE to LOCAL; returns its length. */
size_t build_tcp(const struct segment *s, uint8_t *packet);

/* Reads a packet from LOCAL to REMOTE; 0 if it is a sound TCP segment, checksums included. */
int parse_tcp(const uint8_t *packet, size_t len, struct segment *s);

/* A UDP datagram from REMOTE to LOCAL. */
size_t build_udp(uint16_t from, uint16_t to, const void *data, size_t len, uint8_t *packet);

/* An ICMP error about `about`, whose IP header and 8 bytes are quoted. */
size_t build_icmp(uint8_t type, uint8_t code, const uint8_t *about, uint8_t *packet);

/* The value of a two-byte or one-byte option, -1 if it is not there. */
long option(const struct segment *s, uint8_t kind);

#endif
