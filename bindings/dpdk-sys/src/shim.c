/* See shim.h. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rte_alarm.h>
#include <rte_eth_vhost.h>
#include <rte_vhost.h>

#include "shim.h"

int shouter_dpdk_errno(void)
{
	return rte_errno;
}

unsigned shouter_dpdk_lcore_swap(unsigned id)
{
	unsigned own = RTE_PER_LCORE(_lcore_id);

	RTE_PER_LCORE(_lcore_id) = id;
	return own;
}

/* The log is written by any thread that drives a port or by DPDK's own, a few lines in a port's life. */
#define LOG_BYTES 16384

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char log_ring[LOG_BYTES];
static uint64_t log_written;
static int log_echo;
static FILE *log_stream;

static ssize_t log_write(void *cookie, const char *bytes, size_t length)
{
	(void)cookie;
	pthread_mutex_lock(&log_lock);
	for (size_t i = 0; i < length; i++)
		log_ring[log_written++ % LOG_BYTES] = bytes[i];
	if (log_echo)
		fwrite(bytes, 1, length, stderr);
	pthread_mutex_unlock(&log_lock);
	return (ssize_t)length;
}

int shouter_dpdk_log_capture(int echo)
{
	int status = 0;

	pthread_mutex_lock(&log_lock);
	log_echo = echo;
	if (log_stream == NULL) {
		cookie_io_functions_t functions = { .write = log_write };

		log_stream = fopencookie(NULL, "w", functions);
		if (log_stream != NULL) {
			setvbuf(log_stream, NULL, _IONBF, 0);
			status = rte_openlog_stream(log_stream);
		} else {
			status = -1;
		}
	}
	pthread_mutex_unlock(&log_lock);
	return status;
}

uint64_t shouter_dpdk_log_position(void)
{
	pthread_mutex_lock(&log_lock);
	uint64_t position = log_written;
	pthread_mutex_unlock(&log_lock);
	return position;
}

size_t shouter_dpdk_log_tail(char *out, size_t capacity)
{
	pthread_mutex_lock(&log_lock);
	uint64_t kept = log_written < LOG_BYTES ? log_written : LOG_BYTES;
	uint64_t length = kept < capacity ? kept : capacity;
	uint64_t from = log_written - length;

	/* A line that was cut in front is dropped. */
	if (from > 0) {
		while (from < log_written && log_ring[(from - 1) % LOG_BYTES] != '\n')
			from++;
	}
	size_t copied = 0;
	for (; from < log_written; from++)
		out[copied++] = log_ring[from % LOG_BYTES];
	pthread_mutex_unlock(&log_lock);
	return copied;
}

size_t shouter_dpdk_log_types(char *out, size_t capacity)
{
	char *text = NULL;
	size_t length = 0;
	FILE *stream = open_memstream(&text, &length);

	if (stream == NULL)
		return 0;
	rte_log_dump(stream);
	fclose(stream);
	memcpy(out, text, length < capacity ? length : capacity);
	free(text);
	return length;
}

int shouter_dpdk_vhost_wake(const char *path)
{
	/* The table must be there; each callback may be absent. */
	static const struct rte_vhost_device_ops none;
	int status = rte_vhost_driver_register(path, RTE_VHOST_USER_CLIENT | RTE_VHOST_USER_NO_RECONNECT);

	if (status != 0)
		return status;
	status = rte_vhost_driver_callback_register(path, &none);
	if (status == 0)
		status = rte_vhost_driver_start(path);
	rte_vhost_driver_unregister(path);
	return status;
}

int shouter_dpdk_vhost_features(uint16_t port, uint64_t *features)
{
	int id = rte_eth_vhost_get_vid_from_port_id(port);

	return id < 0 ? id : rte_vhost_get_negotiated_features(id, features);
}

struct closing {
	uint16_t port;
	sem_t done;
};

static void close_now(void *argument)
{
	struct closing *closing = argument;

	rte_eth_dev_stop(closing->port);
	rte_eth_dev_close(closing->port);
	sem_post(&closing->done);
}

int shouter_dpdk_close_on_interrupt_thread(uint16_t port)
{
	struct closing closing = { .port = port };
	int status = sem_init(&closing.done, 0, 0);

	if (status != 0)
		return -errno;
	/* Alarms are served by the interrupt thread. */
	status = rte_eal_alarm_set(1, close_now, &closing);
	if (status == 0) {
		while (sem_wait(&closing.done) != 0 && errno == EINTR)
			;
	}
	sem_destroy(&closing.done);
	return status;
}
