/* The input of bindgen: DPDK's public headers, and the few functions that need C. */
#ifndef SHOUTER_DPDK_SHIM_H
#define SHOUTER_DPDK_SHIM_H

#include <stddef.h>
#include <stdint.h>

#include <rte_bus.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_malloc.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_version.h>

/* rte_errno of the calling thread. It is a thread-local of the C library; a plain static in Rust would link and
 * then read another address. */
int shouter_dpdk_errno(void);

/* Gives the calling thread another lcore id, by which it finds its caches in memory pools, and returns its own;
 * LCORE_ID_ANY: none. No two threads may use DPDK under one id at a time. */
unsigned shouter_dpdk_lcore_swap(unsigned id);

/* Sends DPDK's log to a ring of lines in memory instead of standard error. Idempotent; 0, or -1 if the stream
 * could not be made. `echo` non-zero: lines go to standard error as well. */
int shouter_dpdk_log_capture(int echo);

/* Copies the newest whole lines of the log that fit into `capacity` bytes, oldest first, without a terminator.
 * Returns the number of bytes copied. */
size_t shouter_dpdk_log_tail(char *out, size_t capacity);

/* Bytes written to the log so far: a mark to tell later lines from earlier ones. */
uint64_t shouter_dpdk_log_position(void);

/* Copies the names of all log types, one a line ("id 75: pmd.net.ixgbe.init, level is notice"); a driver whose
 * constructors were linked has one. Returns the number of bytes there are; at most `capacity` are copied. */
size_t shouter_dpdk_log_types(char *out, size_t capacity);

/* Makes DPDK's vhost thread look at its list of sockets again. `path` is a socket with a listener.
 *
 * The thread polls for a second at a time. A connection that vhost makes itself ends that; a socket that it begins
 * to serve does not (DPDK 22.11, lib/vhost/socket.c and fd_man.c), so that its first client waits. 0, or negative. */
int shouter_dpdk_vhost_wake(const char *path);

/* The virtio features that the client of a vhost port has agreed on. 0, or negative if there is no client. */
int shouter_dpdk_vhost_features(uint16_t port, uint64_t *features);

/* Stops and closes a port on DPDK's interrupt thread, and waits for it. For drivers (memif) whose interrupt handler
 * frees what closing frees as well, when the peer hangs up at that moment. 0, or negative. */
int shouter_dpdk_close_on_interrupt_thread(uint16_t port);

#endif
