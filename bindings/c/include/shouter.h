/* shouter.h: Shouter for C and C++.
 *
 * Made from bindings/c/src by cbindgen; do not edit it. To make it anew: WRITE_SHOUTER_HEADER=1 cargo test -p shouter-c
 *
 * Each function returns SHOUTER_OK or another SHOUTER_ERROR_ number, and shouter_last_error() then says who, what and what
 * to do next. A shouter_t may be used from several threads; pointers must be valid for what each function says.
 */

#ifndef SHOUTER_H
#define SHOUTER_H

#include <stddef.h>
#include <stdint.h>

/* The version that this header belongs to; shouter_version() says that of the library. */
#define SHOUTER_VERSION "0.1.0"
#define SHOUTER_VERSION_MAJOR 0
#define SHOUTER_VERSION_MINOR 1
#define SHOUTER_VERSION_PATCH 0
/* One number to compare: SHOUTER_VERSION_NUMBER >= 1002003 from version 1.2.3 on. */
#define SHOUTER_VERSION_NUMBER (SHOUTER_VERSION_MAJOR * 1000000 + SHOUTER_VERSION_MINOR * 1000 + SHOUTER_VERSION_PATCH)

/* The call did what it promises. */
#define SHOUTER_OK 0

/* The configuration cannot be used; nothing was started. */
#define SHOUTER_ERROR_CONFIG 1

/* The group did not come together. */
#define SHOUTER_ERROR_JOIN 2

/* A port, a link or memory could not be opened. */
#define SHOUTER_ERROR_DEVICE 3

/* An argument cannot be used: a null pointer, an unknown number; nothing was started. */
#define SHOUTER_ERROR_ARGUMENT 4

/* Ranks disagree about a tensor or an operation. */
#define SHOUTER_ERROR_MISMATCH 5

/* A rank is gone; the content of the buffers under way is undefined. */
#define SHOUTER_ERROR_PEER_FAILED 6

/* The operation's deadline passed, here or on another rank that waited for the same ones, which ends it. */
#define SHOUTER_ERROR_DEADLINE 7

/* The group was closed, or failed before. */
#define SHOUTER_ERROR_CLOSED 8

/* A fault of this library; please report it. */
#define SHOUTER_ERROR_INTERNAL 9

/* The time-out given to shouter_wait passed: the operation is still under way, and its memory not the caller's yet. */
#define SHOUTER_ERROR_TIMEOUT 10

/* A GPU or its driver cannot be used, or has failed. */
#define SHOUTER_ERROR_ACCELERATOR 11

/* As many operations are under way as can be, and none has ended within a second; nothing was started. */
#define SHOUTER_ERROR_WOULD_BLOCK 12

/* A rank's process was killed or has crashed, or its host or every connection to it is gone. */
#define SHOUTER_REASON_LOST 1

/* A rank left while operations were under way. */
#define SHOUTER_REASON_ABORTED 2

/* A rank did not take part in an operation before the deadline. */
#define SHOUTER_REASON_LATE 3

/* A rank runs other operations than the other ranks. */
#define SHOUTER_REASON_DIVERGED 4

/* A rank sent what no rank of this version and configuration sends. */
#define SHOUTER_REASON_PROTOCOL 5

/* A rank's GPU failed. */
#define SHOUTER_REASON_ACCELERATOR 6

/* A rank has lost its own port, device or address, or no other host answers it, as it said itself. */
#define SHOUTER_REASON_DISCONNECTED 7

/* This rank was stopped or cut off for longer than heartbeat_timeout, as it has found out itself, and the others have given it up: there it is
 * SHOUTER_REASON_LOST. */
#define SHOUTER_REASON_STOPPED 8

/* A rank is alive, and messages to it do not arrive: the network drops packets of their size, say. */
#define SHOUTER_REASON_UNREACHABLE 9

/* An all-reduce. */
#define SHOUTER_OPERATION_ALLREDUCE 1

/* shouter_broadcast. */
#define SHOUTER_OPERATION_BROADCAST 2

/* shouter_barrier. */
#define SHOUTER_OPERATION_BARRIER 3

/* shouter_register. */
#define SHOUTER_OPERATION_REGISTER 4

/* shouter_finalize. */
#define SHOUTER_OPERATION_FINALIZE 5

/* shouter_reduce. */
#define SHOUTER_OPERATION_REDUCE 6

/* shouter_allgather. */
#define SHOUTER_OPERATION_ALLGATHER 7

/* shouter_reduce_scatter. */
#define SHOUTER_OPERATION_REDUCE_SCATTER 8

/* shouter_gather. */
#define SHOUTER_OPERATION_GATHER 9

/* shouter_scatter. */
#define SHOUTER_OPERATION_SCATTER 10

/* shouter_alltoall. */
#define SHOUTER_OPERATION_ALLTOALL 11

/* shouter_allgatherv. */
#define SHOUTER_OPERATION_ALLGATHERV 12

/* shouter_gatherv. */
#define SHOUTER_OPERATION_GATHERV 13

/* shouter_scatterv. */
#define SHOUTER_OPERATION_SCATTERV 14

/* shouter_reduce_scatterv. */
#define SHOUTER_OPERATION_REDUCE_SCATTERV 15

/* shouter_alltoallv. */
#define SHOUTER_OPERATION_ALLTOALLV 16

/* shouter_scan. */
#define SHOUTER_OPERATION_SCAN 17

/* shouter_exscan. */
#define SHOUTER_OPERATION_EXSCAN 18

/* shouter_send, or a send of shouter_exchange. */
#define SHOUTER_OPERATION_SEND 30

/* shouter_recv, or a receive of shouter_exchange. */
#define SHOUTER_OPERATION_RECV 31

/* shouter_window_put. */
#define SHOUTER_OPERATION_PUT 40

/* shouter_window_get. */
#define SHOUTER_OPERATION_GET 41

/* shouter_window_accumulate. */
#define SHOUTER_OPERATION_ACCUMULATE 42

/* shouter_window_fetch_and_op. */
#define SHOUTER_OPERATION_FETCH_AND_OP 43

/* shouter_window_compare_and_swap. */
#define SHOUTER_OPERATION_COMPARE_AND_SWAP 44

/* shouter_window_create. */
#define SHOUTER_OPERATION_WINDOW 45

/* shouter_group_create, shouter_group_split, shouter_group_duplicate. */
#define SHOUTER_OPERATION_GROUP 46

/* How many missing ranks shouter_error_info_t names. */
#define SHOUTER_MISSING_NAMED 16

/* Bytes for a tensor's name in shouter_error_info_t, the zero at its end included. */
#define SHOUTER_NAME_BYTES 128

/* Bytes for the text in shouter_error_info_t, the zero at its end included. */
#define SHOUTER_TEXT_BYTES 1024

/* The color of a rank that is in none of the groups that shouter_group_split makes. */
#define SHOUTER_NO_COLOR -1

/* Something failed, for good. */
#define SHOUTER_LOG_ERROR 1

/* Something is not as it should be; the group goes on. */
#define SHOUTER_LOG_WARN 2

/* What was chosen, and why; which ports, devices and addresses were found. */
#define SHOUTER_LOG_INFO 3

/* Single events, such as a connection that is tried again. */
#define SHOUTER_LOG_DEBUG 4

/* The least of all. */
#define SHOUTER_LOG_TRACE 5

/* In the place of a rank that a receive or a probe names: any. */
#define SHOUTER_ANY_RANK -1

/* In the place of a tag that a receive or a probe names: any. */
#define SHOUTER_ANY_TAG -1

/* A send, which only reads its data. */
#define SHOUTER_SEND 0

/* A receive. */
#define SHOUTER_RECV 1

/* A send that ends only when a receive has taken its message: what goes wrong with that is its own error. */
#define SHOUTER_SYNCHRONOUS_SEND 2

/* IEEE 754 binary16; sums are accumulated in float32. */
#define SHOUTER_F16 0

/* bfloat16, the upper half of a float32; sums are accumulated in float32. */
#define SHOUTER_BF16 1

/* IEEE 754 binary32. */
#define SHOUTER_F32 2

/* IEEE 754 binary64. */
#define SHOUTER_F64 3

/* Signed, 8 bits. */
#define SHOUTER_I8 4

/* Signed, 16 bits. */
#define SHOUTER_I16 5

/* Signed, 32 bits. */
#define SHOUTER_I32 6

/* Signed, 64 bits. */
#define SHOUTER_I64 7

/* Unsigned, 8 bits. */
#define SHOUTER_U8 8

/* Unsigned, 16 bits. */
#define SHOUTER_U16 9

/* Unsigned, 32 bits. */
#define SHOUTER_U32 10

/* Unsigned, 64 bits. */
#define SHOUTER_U64 11

/* OCP 8-bit float with 4 bits of exponent, a byte; sums are accumulated in float32. What is too large becomes NaN. */
#define SHOUTER_F8E4M3 12

/* OCP 8-bit float with 5 bits of exponent, a byte; sums are accumulated in float32. What is too large becomes an infinity. */
#define SHOUTER_F8E5M2 13

/* Two float32: the real part, then the imaginary part (`float _Complex`). An element is aligned to its parts. */
#define SHOUTER_COMPLEX64 14

/* Two float64: the real part, then the imaginary part (`double _Complex`). An element is aligned to its parts. */
#define SHOUTER_COMPLEX128 15

/* A truth value in a byte: 0 is false, all others are true. Reductions write 0 or 1; what is only moved stays as it is. */
#define SHOUTER_BOOL 16

/* The sum; integers wrap. */
#define SHOUTER_SUM 0

/* The least. */
#define SHOUTER_MIN 1

/* The greatest. */
#define SHOUTER_MAX 2

/* The product; integers wrap. */
#define SHOUTER_PROD 3

/* The mean: the sum divided by the number of ranks. */
#define SHOUTER_AVG 4

/* Each bit that all have. */
#define SHOUTER_BAND 5

/* Each bit that any has. */
#define SHOUTER_BOR 6

/* Each bit that an odd number of them have. */
#define SHOUTER_BXOR 7

/* Whether all are true. */
#define SHOUTER_LAND 8

/* Whether any is true. */
#define SHOUTER_LOR 9

/* Whether an odd number of them are true. */
#define SHOUTER_LXOR 10

/* A timeout in milliseconds that stands for the group's own deadline: 30 minutes, unless SHOUTER_DEADLINE says otherwise. */
#define SHOUTER_DEFAULT_TIMEOUT -1

/* In the place of a reduction of shouter_window_accumulate or shouter_window_fetch_and_op: writes the elements. */
#define SHOUTER_REPLACE 32

/* The same: changes nothing, so that shouter_window_fetch_and_op reads. `data` is not looked at. */
#define SHOUTER_KEEP 33

/* Memory of this host, page-locked memory included. */
#define SHOUTER_MEMORY_HOST 0

/* Memory of an NVIDIA GPU, or managed memory: see shouter_allreduce_cuda. All operations and all groups take it, input and output alike; layouts do
 * not. */
#define SHOUTER_MEMORY_CUDA 1

/* A message to one rank and another from one, as one operation: see shouter_start. */
#define SHOUTER_OPERATION_SENDRECV 32

/* In the place of a collective: the next operation of a registered tensor. */
#define SHOUTER_OPERATION_OF_TENSOR 0

/* A rank's membership in a group, and all that serves it: threads, links, memory. */
typedef struct shouter_t shouter_t;

/* A handle of an operation that was started. */
typedef struct shouter_work_t shouter_work_t;

/* What a call returns: SHOUTER_OK, or one of the SHOUTER_ERROR_ numbers. shouter_last_error says more. */
typedef int32_t shouter_status_t;

/* The type of a tensor's elements: one of SHOUTER_F16 to SHOUTER_BOOL. */
typedef int32_t shouter_dtype_t;

/* How the ranks' elements become one: one of SHOUTER_SUM to SHOUTER_LXOR.
 *
 * Integers have SUM to BXOR, floats SUM to AVG, complex numbers SUM, PROD and AVG, and truth values LAND, LOR and LXOR; another is
 * SHOUTER_ERROR_ARGUMENT. */
typedef int32_t shouter_op_t;

/* A tensor that every rank will reduce, gather or move otherwise in each step: an entry of the tensor table. */
typedef struct shouter_tensor_t {
  /* For people and for agreement: every rank registers the same names in the same order. UTF-8, copied. */
  const char *name;
  /* What is done with it, the same on every rank: one of the kinds of shouter_operation_t. */
  int32_t kind;
  /* The root, the same on every rank; 0 where there is none. */
  uint32_t root;
  /* Elements of the tensor, or of one rank's block, the same on every rank; 0 where there is a count for each rank. */
  size_t count;
  /* SHOUTER_F32 and its like, the same on every rank. */
  shouter_dtype_t dtype;
  /* SHOUTER_SUM and its like, the same on every rank; not looked at where nothing is reduced. */
  shouter_op_t op;
  /* Elements for each rank in the input of a SCATTERV or a REDUCE_SCATTERV, the same list on every rank; of an ALLTOALLV what this rank gives
   * to each. As many as the group has ranks; they are read during the call. NULL for all other kinds. */
  const size_t *input_counts;
  /* Elements of each rank in the output of an ALLGATHERV or a GATHERV, the same list on every rank; of an ALLTOALLV what this rank takes from
   * each. Likewise; NULL for all other kinds. */
  const size_t *output_counts;
} shouter_tensor_t;

/* What is known of an error, for programs: see shouter_last_error_info. Later versions may add fields at the end. */
typedef struct shouter_error_info_t {
  /* Before the call: sizeof(shouter_error_info_t). After it: how many bytes of it this library has filled. */
  size_t size;
  /* The status of the call that failed; SHOUTER_OK if none has failed on this thread. */
  shouter_status_t status;
  /* The rank that is to blame; -1 if there is none, or it is not known. */
  int32_t rank;
  /* What happened to it: one of SHOUTER_REASON_LOST to SHOUTER_REASON_UNREACHABLE; 0 if there is none. With SHOUTER_ERROR_MISMATCH it is
   * SHOUTER_REASON_DIVERGED where the group has ended, and 0 where it goes on. */
  int32_t reason;
  /* The call: one of SHOUTER_OPERATION_ALLREDUCE to SHOUTER_OPERATION_GROUP; 0 if it is none of these. */
  int32_t operation;
  /* The tensor, as shouter_register has numbered it; -1 if there is none, or it is not registered. */
  int64_t tensor;
  /* The trainer's step at the call, as shouter_set_step gave it; 0 before that, and if there is none. */
  uint64_t step;
  /* Nanoseconds that the operation had (SHOUTER_ERROR_DEADLINE), or that were waited (SHOUTER_ERROR_TIMEOUT,
   * SHOUTER_ERROR_WOULD_BLOCK); else 0. */
  uint64_t after_ns;
  /* The rank whose GPU may still use the tensor, whose memory must stay as it is then; -1 if there is none. */
  int32_t in_use_by;
  /* How many entries of `missing` are filled. */
  uint32_t missing_count;
  /* The ranks that did not come in time, in order: the first SHOUTER_MISSING_NAMED of them. */
  uint32_t missing[SHOUTER_MISSING_NAMED];
  /* The tensor's name in UTF-8, cut off where it is longer; empty if there is none. */
  char tensor_name[SHOUTER_NAME_BYTES];
  /* The text of shouter_last_error, cut off where it is longer. */
  char text[SHOUTER_TEXT_BYTES];
} shouter_error_info_t;

/* What this process has done since shouter_init. */
typedef struct shouter_stats_t {
  /* Collectives completed. */
  uint64_t operations;
  /* Bytes of this rank's tensors that were reduced. */
  uint64_t bytes_reduced;
  /* Nanoseconds from push to completion, summed over the operations; operations that overlap each count. */
  uint64_t time_in_allreduce_ns;
  /* Collectives that this host's ranks reduced straight from each other's tensors: in memory of shouter_alloc, or by GPUs. The
   * tensors of others were staged. */
  uint64_t in_place;
  /* Frames that left this host's port; counted by the rank that owns it (a host's first), as are all that follow. */
  uint64_t frames_sent;
  /* Frames that came in at this host's port. */
  uint64_t frames_received;
  /* Of the frames that left this host's port, those whose payload was read where it lay, and not copied into a buffer before. */
  uint64_t frames_uncopied;
  /* Bytes that left this host's port, Ethernet headers included. */
  uint64_t bytes_sent;
  /* Bytes that came in at this host's port, Ethernet headers included. */
  uint64_t bytes_received;
  /* Datagrams sent again because their acknowledgement did not come. */
  uint64_t resent;
  /* Datagrams dropped because their checksum was wrong; their senders sent them again. */
  uint64_t crc_dropped;
  /* Datagrams of sealed sessions dropped because they had come before: the network, or someone in it, has repeated them. */
  uint64_t replayed;
  /* Paths of RUD left out at present, because they lose what the others to the same host deliver. */
  uint64_t paths_out;
  /* Ports of this host whose link is down at present. */
  uint64_t links_down;
  /* Times that the link of a port of this host went down after it was up. */
  uint64_t link_losses;
  /* Leaders of other hosts that this rank has a channel to: one is made at its first use. */
  uint64_t channels;
} shouter_stats_t;

/* What takes a line of the log: `context` as it was given, one of SHOUTER_LOG_ERROR to SHOUTER_LOG_TRACE, the rank that says it
 * (-1 as long as it has none), and one line of text in UTF-8 without a line end, which is valid during the call. */
typedef void (*shouter_log_t)(void *context, int32_t level, int32_t rank, const char *text);

/* A message, as a receive or a probe finds it. */
typedef struct shouter_message_t {
  /* The rank that has sent it; for a send, the one that it went to. */
  uint32_t rank;
  /* Its tag. */
  uint32_t tag;
  /* Its elements. */
  uint64_t count;
  /* Their type: SHOUTER_F32 and its like. */
  shouter_dtype_t dtype;
} shouter_message_t;

/* Elements that do not lie one behind the other: `count` blocks of `block` elements each, the first elements of which are `stride`
 * elements apart. A column of a matrix of 10 rows and 7 columns is {10, 1, 7}. What lies between the blocks is not touched. */
typedef struct shouter_layout_t {
  /* Blocks; 0 is allowed. */
  size_t count;
  /* Elements of a block, at least 1. */
  size_t block;
  /* Elements from the beginning of a block to that of the next, at least as many as a block has. */
  size_t stride;
} shouter_layout_t;

/* One message of shouter_exchange. */
typedef struct shouter_exchange_t {
  /* The elements of a send, or the room of a receive. */
  void *data;
  /* How many. */
  size_t count;
  /* Their type: SHOUTER_F32 and its like. */
  shouter_dtype_t dtype;
  /* What it is: SHOUTER_SEND, SHOUTER_SYNCHRONOUS_SEND or SHOUTER_RECV. */
  int32_t kind;
  /* The other rank. For a receive it may be SHOUTER_ANY_RANK. */
  int64_t rank;
  /* The tag. For a receive it may be SHOUTER_ANY_TAG. */
  int64_t tag;
  /* NULL, or how the `count` elements lie. What is sent is copied at first; what is received is written, the first elements of the layout
   * if the message is shorter, when it has come, and stays as it is where it does not. */
  const struct shouter_layout_t *layout;
  /* Written: how it has ended. */
  shouter_status_t status;
  /* Written: the message, where the status is SHOUTER_OK. */
  struct shouter_message_t message;
} shouter_exchange_t;

/* An operation to be started. Set all of it to zero first: later versions may add fields at the end, and zero is their default. */
typedef struct shouter_operation_t {
  /* sizeof(shouter_operation_t). */
  size_t size;
  /* A collective: one of SHOUTER_OPERATION_ALLREDUCE, BROADCAST, BARRIER, REDUCE, ALLGATHER, REDUCE_SCATTER, GATHER, SCATTER,
   * ALLTOALL, SCAN and EXSCAN, or with a count for each rank: ALLGATHERV, GATHERV, SCATTERV, REDUCE_SCATTERV, ALLTOALLV. Or a message:
   * SHOUTER_OPERATION_SEND, RECV or SENDRECV. Or SHOUTER_OPERATION_OF_TENSOR: that of a registered tensor. */
  int32_t kind;
  /* The number that shouter_register gave, for SHOUTER_OPERATION_OF_TENSOR; counts, dtype, op and root are as it was registered then,
   * and the fields are not looked at. */
  uint32_t tensor;
  /* SHOUTER_F32 and its like. */
  shouter_dtype_t dtype;
  /* SHOUTER_SUM and its like, where elements are reduced. */
  shouter_op_t op;
  /* The root, where there is one. */
  uint32_t root;
  /* The input, as the blocking function of this kind has it; may be the output. Not looked at where this rank has none. */
  const void *input;
  /* The output; a broadcast has its elements here on the root, too. */
  void *output;
  /* Elements of the tensor, or of one rank's block; of a message that is sent, or that SHOUTER_OPERATION_RECV has room for. Where there is a
   * count for each rank: this rank's, of a GATHERV's input or a SCATTERV's output; else not looked at. */
  size_t count;
  /* Where input and output lie: SHOUTER_MEMORY_HOST or SHOUTER_MEMORY_CUDA. A registered tensor on a GPU whose `input` is NULL is in
   * place: its input is in the output, in this rank's block of it where there are several, or the other way round. */
  int32_t memory;
  /* For memory of a GPU: the stream on which the elements are produced. What it holds at the call comes before the input is read and the
   * output is written. */
  void *stream;
  /* NULL, or a number by which each element of this rank's input is multiplied first, in a copy: for SHOUTER_SUM of floats and complex
   * numbers. Ranks may have different ones. It is rounded to the type that sums are accumulated in, and the
   * product to the element's type. Read during the call. */
  const double *factor;
  /* NULL, or how the elements of the input lie, those of all blocks in one; host memory only. They are copied during the call. */
  const struct shouter_layout_t *input_layout;
  /* NULL, or how those of the output lie; a broadcast's root has its elements there, too. They are written when the operation has ended
   * well; where it fails they stay as they were. The layout itself is read during the call. */
  const struct shouter_layout_t *output_layout;
  /* Elements for each rank in the input of a REDUCE_SCATTERV, an ALLTOALLV, or a SCATTERV's root: as many as the group has ranks. Read
   * during the call; not looked at for other kinds. */
  const size_t *input_counts;
  /* Elements of each rank in the output of an ALLGATHERV, an ALLTOALLV, or a GATHERV's root; likewise. */
  const size_t *output_counts;
  /* The rank that a SEND or SENDRECV goes to. */
  uint32_t to;
  /* The rank that a RECV or SENDRECV receives from, or SHOUTER_ANY_RANK. */
  int64_t from;
  /* The message's tag; of a RECV it may be SHOUTER_ANY_TAG. */
  int64_t tag;
  /* Elements that a SENDRECV's output has room for. */
  size_t room;
} shouter_operation_t;

/* What shouter_on_done calls: with its `context`, and the operation's status. shouter_last_error and shouter_last_error_info say more
 * within the call. */
typedef void (*shouter_done_t)(void *context, shouter_status_t status);

#ifdef __cplusplus
extern "C" {
#endif  /* __cplusplus */

/* As shouter_allreduce, with the result at `output`: `count` elements each. Every rank may choose between this and shouter_allreduce.
 *
 * This and the following functions: every rank makes the same calls in the same order, with the same counts, type, operation and root;
 * one that differs is named in the error. Blocks lie in rank order. Input and output may be the same memory: where one has a block for
 * each rank and the other one block, that is the rank's own block of it. They may not overlap otherwise. Both must be aligned to their
 * elements; where this rank has none the pointer is not looked at. Nobody else may write the input or touch the output during the call,
 * which waits for the group's own deadline at most. After an error the content of the output is undefined. */
shouter_status_t shouter_allreduce_to(const struct shouter_t *shouter,
                                      const void *input,
                                      void *output,
                                      size_t count,
                                      shouter_dtype_t dtype,
                                      shouter_op_t op);

/* Reduces `count` elements of every rank at `input` into `output` of rank `root`; the others have no output. */
shouter_status_t shouter_reduce(const struct shouter_t *shouter,
                                const void *input,
                                void *output,
                                size_t count,
                                shouter_dtype_t dtype,
                                shouter_op_t op,
                                uint32_t root);

/* Gives the `count` elements at `data` of rank `root` to all ranks. A rank that has its result, or takes none, may return before the others
 * have called a collective: this one's root, say. Where one of those calls something else then, that is the error of one of its next calls,
 * of shouter_finalize at the latest. */
shouter_status_t shouter_broadcast(const struct shouter_t *shouter,
                                   void *data,
                                   size_t count,
                                   shouter_dtype_t dtype,
                                   uint32_t root);

/* Gives all ranks the `count` elements at `input` of each: `output` has a block of `count` for each rank. */
shouter_status_t shouter_allgather(const struct shouter_t *shouter,
                                   const void *input,
                                   void *output,
                                   size_t count,
                                   shouter_dtype_t dtype);

/* Gives rank `root` the `count` elements at `input` of each rank: its `output` has a block of `count` for each; the others have none. */
shouter_status_t shouter_gather(const struct shouter_t *shouter,
                                const void *input,
                                void *output,
                                size_t count,
                                shouter_dtype_t dtype,
                                uint32_t root);

/* Gives each rank its block of `count` elements of `input` of rank `root`, which has one for each rank; the others have no input. */
shouter_status_t shouter_scatter(const struct shouter_t *shouter,
                                 const void *input,
                                 void *output,
                                 size_t count,
                                 shouter_dtype_t dtype,
                                 uint32_t root);

/* Reduces `input`, which has a block of `count` elements for each rank, over all ranks, and gives each rank its block in `output`. */
shouter_status_t shouter_reduce_scatter(const struct shouter_t *shouter,
                                        const void *input,
                                        void *output,
                                        size_t count,
                                        shouter_dtype_t dtype,
                                        shouter_op_t op);

/* Gives each rank its block of `count` elements of `input`, and puts what this rank gets from each into its block of `output`; both have
 * a block for each rank. */
shouter_status_t shouter_alltoall(const struct shouter_t *shouter,
                                  const void *input,
                                  void *output,
                                  size_t count,
                                  shouter_dtype_t dtype);

/* Reduces `count` elements of every rank up to this one at `input`, in rank order, into `output`: each rank has another result. There is no
 * SHOUTER_AVG. */
shouter_status_t shouter_scan(const struct shouter_t *shouter,
                              const void *input,
                              void *output,
                              size_t count,
                              shouter_dtype_t dtype,
                              shouter_op_t op);

/* As shouter_scan, over the ranks before this one. The output of rank 0, which has none, stays as it is. */
shouter_status_t shouter_exscan(const struct shouter_t *shouter,
                                const void *input,
                                void *output,
                                size_t count,
                                shouter_dtype_t dtype,
                                shouter_op_t op);

/* Reduces `count` elements at `data` with those of all ranks, in place, and returns when the result is there.
 *
 * For what is not worth an entry in the tensor table: every rank calls it in the same order with the same count, type and
 * operation. `data` must be aligned to its elements; nobody else may touch it during the call. Waits for the group's own
 * deadline at most. After an error the content of `data` is undefined. */
shouter_status_t shouter_allreduce(const struct shouter_t *shouter,
                                   void *data,
                                   size_t count,
                                   shouter_dtype_t dtype,
                                   shouter_op_t op);

/* As shouter_allreduce, for `count` elements in the memory of an NVIDIA GPU.
 *
 * `data` is a device address (cudaMalloc and its like) or one of managed memory. `stream` is the cudaStream_t or CUstream on which
 * they are produced, of the same device; NULL is the default stream, and a trainer compiled for per-thread default streams
 * passes cudaStreamPerThread. The elements are read after what `stream` holds at the call; when the call returns, the result
 * is there for any stream. Nothing waits for the whole device. Ranks with tensors in host memory may take part.
 *
 * Nobody else touches the elements from what `stream` held on until the call returns, and the CUDA context lives until
 * shouter_finalize has returned. A process uses one GPU, that of its first such call. SHOUTER_ERROR_ARGUMENT: memory that is not a
 * GPU's (page-locked host memory goes to shouter_allreduce), too short, or of another GPU; a stream of another device, or one that is
 * being captured into a graph. SHOUTER_ERROR_ACCELERATOR: no usable driver or GPU, one that fails, or a library built without CUDA. */
shouter_status_t shouter_allreduce_cuda(const struct shouter_t *shouter,
                                        void *data,
                                        size_t count,
                                        shouter_dtype_t dtype,
                                        shouter_op_t op,
                                        void *stream);

/* Agrees with all ranks on the `n` tensors that each step reduces, or moves otherwise, and writes a number for each to `ids`.
 *
 * Every rank calls it with the same names, kinds, roots, counts (but for those of an ALLTOALLV), types and operations in the same order;
 * a rank that differs is named in the error that every rank gets. The order is the priority: give the tensors that are needed first, first (forward order).
 * Registering again, for instance when a framework has changed its buckets, is a new generation: it has numbers of its own.
 *
 * Where there is a count for each rank, counts are given here, on every rank, and shouter_start sends none. After SHOUTER_ERROR_MISMATCH nothing
 * is registered, and the group goes on. After SHOUTER_ERROR_DEADLINE it goes on as well, but registers nothing more; a group of some ranks has
 * ended then. Where there is an ALLTOALLV among the tensors, the call is one of the group's operations, in
 * their order. */
shouter_status_t shouter_register(const struct shouter_t *shouter,
                                  const struct shouter_tensor_t *tensors,
                                  size_t n,
                                  uint32_t *ids);

/* Waits until every rank has called it. */
shouter_status_t shouter_barrier(const struct shouter_t *shouter);

/* Tells which step of the training the next operations belong to: for error messages and traces. */
shouter_status_t shouter_set_step(const struct shouter_t *shouter, uint64_t step);

/* Names the operations without a tensor's name that this rank starts in this group from now on, in timelines and dumps: after the tensors in
 * a bucket, say. An empty label is none, and so is NULL. The label is copied; ranks need not have the same. */
shouter_status_t shouter_set_label(const struct shouter_t *shouter,
                                   const char *label);

/* Why the calling thread's last failed call failed: who, what, and what to do next. An empty string if none has failed.
 * The text is valid until the next call of this library on the same thread. */
const char *shouter_last_error(void);

/* What is known of the calling thread's last error, copied to `*info`: which rank, why, during which call, of which tensor.
 *
 * ```c
 * shouter_error_info_t why;
 * why.size = sizeof why;
 * if (shouter_wait(work, SHOUTER_DEFAULT_TIMEOUT) != SHOUTER_OK
 *     && shouter_last_error_info(&why) == SHOUTER_OK && why.status == SHOUTER_ERROR_PEER_FAILED)
 *     fprintf(stderr, "without rank %d from step %llu on\n", (int)why.rank, (unsigned long long)why.step);
 * ```
 *
 * `info->size` must be set before the call; at most so many bytes are written, so a program that was compiled with an earlier
 * header gets the fields that it knows. After the call `info->size` is how many bytes of it are filled. SHOUTER_ERROR_ARGUMENT if
 * `info` is NULL or its size below that of the first two fields. This call leaves the thread's last error as it is. */
shouter_status_t shouter_last_error_info(struct shouter_error_info_t *info);

/* The name of a status, such as "deadline"; "unknown" for a number that is none. The text is static. */
const char *shouter_error_name(shouter_status_t status);

/* Makes groups of the ranks with the same `color`, from 0 to 2^32 - 1, or SHOUTER_NO_COLOR for a rank that is in none: its `*out` is
 * NULL. Every rank of `shouter` calls it, as it would a collective. In a new group ranks are numbered by `key`, and by their
 * number in `shouter` where keys are the same.
 *
 * This and the following functions: a new group is used with every function that takes a shouter_t and ends with its own
 * shouter_finalize. It has its own order of operations, deadlines and end: an error in it leaves the others as they were; a rank that dies
 * ends all. Errors name ranks by their numbers in the group that was called; shouter_job_rank says which those are. A process
 * leaves the job with the last of its groups. */
shouter_status_t shouter_group_split(const struct shouter_t *shouter,
                                     int64_t color,
                                     int64_t key,
                                     struct shouter_t **out);

/* The same with a deadline of its own for each of the new groups' operations, in milliseconds and above 0, in place of that of `shouter`. Ranks
 * may have different ones. */
shouter_status_t shouter_group_split_within(const struct shouter_t *shouter,
                                            int64_t color,
                                            int64_t key,
                                            int64_t deadline_ms,
                                            struct shouter_t **out);

/* Makes a group of the `n` ranks of `shouter` at `ranks`, which are numbered in this order there. Only they call it, each with the same
 * list, and it returns when all have. Groups of the same ranks are made in the same order by all of them. */
shouter_status_t shouter_group_create(const struct shouter_t *shouter,
                                      const uint32_t *ranks,
                                      size_t n,
                                      struct shouter_t **out);

/* The same with a deadline of its own for each of the new group's operations, in milliseconds and above 0, in place of that of `shouter`; its
 * making may take the longer of both. Members may have different ones. */
shouter_status_t shouter_group_create_within(const struct shouter_t *shouter,
                                             const uint32_t *ranks,
                                             size_t n,
                                             int64_t deadline_ms,
                                             struct shouter_t **out);

/* Makes a group of the same ranks with the same numbers, whose operations have an order of their own. Every rank calls it. */
shouter_status_t shouter_group_duplicate(const struct shouter_t *shouter,
                                         struct shouter_t **out);

/* Writes to `*out` the number that rank `rank` of this group has in the group of shouter_init. */
shouter_status_t shouter_job_rank(const struct shouter_t *shouter, uint32_t rank, uint32_t *out);

/* Joins the group that the environment and a file describe, and waits until all its ranks are there.
 *
 * The environment is that of `shouter run` (SHOUTER_RANK, SHOUTER_SIZE...) or of torchrun (RANK, WORLD_SIZE, LOCAL_RANK,
 * MASTER_ADDR, MASTER_PORT); each key of the configuration can also be given as SHOUTER_ and its name in capitals. `config_file`
 * is the path of a TOML file, or NULL for the one that SHOUTER_CONFIG names, if any. On success `*out` is the new group. */
shouter_status_t shouter_init(const char *config_file,
                              struct shouter_t **out);

/* Joins a group given as lists: rank i of `n` is at `addresses[i]`, an IP address, and `ports[i]`, a TCP port.
 *
 * Which of them this process is, SHOUTER_RANK or RANK says; else it is the first entry whose address is this host's and whose
 * port is free. The ranks meet at rank 0's entry. `channel_num` is the number of connections in the channel to each peer; 0 leaves it
 * to the key of that name, and where that is not set to the transport. The rest comes from the environment, as in shouter_init. On
 * success `*out` is the new group. */
shouter_status_t shouter_init_list(const char *const *addresses,
                                   const uint16_t *ports,
                                   size_t n,
                                   uint32_t channel_num,
                                   struct shouter_t **out);

/* Leaves the group together with all its other ranks, and frees everything of it. NULL is allowed and does nothing.
 *
 * Must be the last call on `shouter`: no other may be under way, and each later one gets SHOUTER_ERROR_ARGUMENT, a second
 * shouter_finalize too. It ends also when this returns an error (a rank that is gone cannot leave in order).
 * Waits for this rank's operations under way, then for all ranks. Buffers of operations that were started and not waited for hold their
 * results after it, and may be used again. Handles stay until shouter_work_free. */
shouter_status_t shouter_finalize(struct shouter_t *shouter);

/* Makes `bytes` of zeroed memory for tensors, aligned to a page; `*out` is its address.
 *
 * The other ranks of the host see it too: large tensors that lie in such memory on every rank are reduced in place where all
 * ranks are on one host, which is several times faster where its cores are far apart. Results do not depend on it, and ranks need not agree on who uses it. RDMA devices
 * send large tensors from it and write to it without a copy, and NICs that DPDK drives (`pci:`) send them by RUD without one; there all of it takes memory at
 * once, elsewhere only what is touched. A forked child does not have it. It goes back with shouter_free, at the latest with shouter_finalize. */
shouter_status_t shouter_alloc(const struct shouter_t *shouter,
                               size_t bytes,
                               void **out);

/* Gives memory from shouter_alloc back; NULL is allowed and does nothing. No operation may be under way in it. */
shouter_status_t shouter_free(const struct shouter_t *shouter, void *memory);

/* Promises that `bytes` of the caller's own memory at `memory` stay where they are until shouter_unpin or shouter_finalize has
 * returned, so that RDMA devices can send tensors of it, and write what peers send to it, and NICs that DPDK drives (`pci:`)
 * can send them by RUD, without a copy.
 *
 * Worth it for memory that is pushed again and again; what shouter_alloc gave needs no promise. It takes a while, and the
 * pages stay in memory from then on; a forked child does not have them. Where it is of no use (another transport, or more than
 * rdma_memory_mb or the limit of locked memory allows, which the log says once) nothing changes, and that is no error. */
shouter_status_t shouter_pin(const struct shouter_t *shouter,
                             void *memory,
                             size_t bytes);

/* Takes the promise of shouter_pin back for memory that begins at `memory`; for any other nothing happens. No operation may be
 * under way in it. */
shouter_status_t shouter_unpin(const struct shouter_t *shouter,
                               void *memory);

/* This process's number in the group, from 0; 0 if `shouter` is NULL or finalized. */
uint32_t shouter_rank(const struct shouter_t *shouter);

/* How many ranks the group has; 0 if `shouter` is NULL or finalized. */
uint32_t shouter_size(const struct shouter_t *shouter);

/* This process's number among the ranks of its host, from 0; 0 if `shouter` is NULL or finalized. */
uint32_t shouter_local_rank(const struct shouter_t *shouter);

/* How many ranks this host has; 0 if `shouter` is NULL or finalized. */
uint32_t shouter_local_size(const struct shouter_t *shouter);

/* This host's number in the group, from 0; 0 if `shouter` is NULL or finalized. */
uint32_t shouter_node(const struct shouter_t *shouter);

/* How many hosts the group has; 0 if `shouter` is NULL or finalized. */
uint32_t shouter_nodes(const struct shouter_t *shouter);

/* Which channels carry the group's data on this host, and why: the first line names them, `local`, `shm`, or such as `shm+rud`;
 * each other line is a choice, with what was passed over for which reason. Between hosts the first rank of each host knows why;
 * SHOUTER_LOG=info says the same. The text is valid until shouter_finalize; it is empty if `shouter` is NULL or finalized. */
const char *shouter_transport(const struct shouter_t *shouter);

/* Copies what this process has done so far to `*out`. */
shouter_status_t shouter_stats(const struct shouter_t *shouter, struct shouter_stats_t *out);

/* Writes what this rank has done so far as a trace to the file `path`; <https://ui.perfetto.dev> opens it. Needs the key timeline from
 * shouter_init on: nothing is recorded otherwise. shouter_finalize writes one to the folder that the key names. */
shouter_status_t shouter_timeline(const struct shouter_t *shouter,
                                  const char *path);

/* Gives up: ends the job for all its ranks, as where this one's program has met an error that it cannot go on with. Their calls fail from
 * then on with SHOUTER_ERROR_PEER_FAILED, or, where none was under way, with SHOUTER_ERROR_CLOSED: both name this rank, and their texts have
 * `why`, a string of which 1,024 bytes are kept. It waits for nobody; shouter_finalize frees the group. */
shouter_status_t shouter_abort(const struct shouter_t *shouter,
                               const char *why);

/* Writes the last 4,096 events of this rank to a new file, and the file's path, which ends in a zero byte, to the `len` bytes at `path`;
 * a NULL `path` takes none. <https://ui.perfetto.dev> opens the file; it is in the folder that the key dump_folder names. If the path does not
 * fit, the status is SHOUTER_ERROR_ARGUMENT, and the file is there. When a group ends in error, the same has been done already: the
 * error's text names the file. */
shouter_status_t shouter_dump(const struct shouter_t *shouter,
                              char *path,
                              size_t len);

/* This library's version, such as "0.1.0". The text is static. */
const char *shouter_version(void);

/* Sets what the library logs, and where to. Without this call it logs to standard error what SHOUTER_LOG says, from
 * shouter_init on.
 *
 * `filter` is a level (error, warn, info, debug, trace or off), or levels by module such as "warn,shouter::channel=debug"; NULL is
 * what SHOUTER_LOG says, and warnings if it is not set. `log` takes each line in place of standard error; NULL is standard
 * error. It is called from any thread, also from several at once and from those that drive the network: it returns soon, throws
 * nothing, and calls nothing of this library. What was set before is not called any more when this has returned.
 * May be called before shouter_init, and at any time. */
shouter_status_t shouter_set_log(const char *filter,
                                 shouter_log_t log,
                                 void *context);

/* Sends `count` elements at `data` to rank `to`, and returns when they may be changed. A small message may wait there for its receive
 * then; what becomes of it later (a receive too short for it, none before the deadline) is the error of the next send to that rank, which
 * its text says; that next one has sent nothing then.
 *
 * This and the following functions: only sender and receiver take part, and collectives are not disturbed. Messages from one rank to
 * another with one tag are received in the order in which they were sent. A rank may send to itself. A message of more than 16 KiB, or more
 * than there is room for, stays with its sender until it is received: two ranks that send each other such ones before they receive wait
 * for each other; shouter_exchange does not. Data must be aligned to its elements. The group goes on after SHOUTER_ERROR_ARGUMENT,
 * SHOUTER_ERROR_MISMATCH (the receive is too short, or of another type: an error on both ranks, and the message is gone) and
 * SHOUTER_ERROR_DEADLINE (nobody has received it, or sent it, within the group's own deadline). A rank that is stopped while it fetches
 * the data is waited for until the key heartbeat_timeout has found it, whatever the deadline. */
shouter_status_t shouter_send(const struct shouter_t *shouter,
                              const void *data,
                              size_t count,
                              shouter_dtype_t dtype,
                              uint32_t to,
                              uint32_t tag);

/* Receives the first message from rank `from` (or SHOUTER_ANY_RANK) with this `tag` (or SHOUTER_ANY_TAG) into `data`, which has room for
 * `count` elements; the message may be shorter. What it is is written to `message`, unless that is NULL. */
shouter_status_t shouter_recv(const struct shouter_t *shouter,
                              void *data,
                              size_t count,
                              shouter_dtype_t dtype,
                              int64_t from,
                              int64_t tag,
                              struct shouter_message_t *message);

/* Runs `n` sends and receives at once, started in this order, and returns when all have ended; each has its status written. However
 * ranks order theirs, they cannot wait for each other for ever. Returns the first status that is not SHOUTER_OK. Nothing is started, and
 * nothing written, where an argument of one cannot be used. A receive into memory that another entry sends or receives is
 * SHOUTER_ERROR_ARGUMENT of each. */
shouter_status_t shouter_exchange(const struct shouter_t *shouter,
                                  struct shouter_exchange_t *exchanges,
                                  size_t n);

/* Looks for a message from rank `from` (or SHOUTER_ANY_RANK) with this `tag` (or SHOUTER_ANY_TAG) that has come, and that no receive has
 * taken; waits for one for `timeout_ms` milliseconds at most. Writes 1 to `*found` and the message to `*message`, or 0. */
shouter_status_t shouter_probe(const struct shouter_t *shouter,
                               int64_t from,
                               int64_t tag,
                               int64_t timeout_ms,
                               int32_t *found,
                               struct shouter_message_t *message);

/* As shouter_allgather, with `counts[r]` elements of rank `r`: `input` has this rank's, `output` those of all, one block behind the other.
 *
 * This and the following functions: counts may be zero, and are read during the call only. One that ranks do not agree on is an error on
 * every rank: SHOUTER_ERROR_MISMATCH names the ranks and both counts. Where only the root has the counts of all, and for
 * shouter_alltoallv, that is found before any output is written, and the group goes on; else it ends. What is said at shouter_allreduce_to
 * holds here too. */
shouter_status_t shouter_allgatherv(const struct shouter_t *shouter,
                                    const void *input,
                                    void *output,
                                    const size_t *counts,
                                    shouter_dtype_t dtype);

/* As shouter_gather, with `count` elements of this rank, and `counts[r]` of rank `r` in the output of rank `root`; the others have
 * neither output nor counts. */
shouter_status_t shouter_gatherv(const struct shouter_t *shouter,
                                 const void *input,
                                 size_t count,
                                 void *output,
                                 const size_t *counts,
                                 shouter_dtype_t dtype,
                                 uint32_t root);

/* As shouter_scatter, with `counts[r]` elements for rank `r` in the input of rank `root`, and `count` for this rank; the others have
 * neither input nor counts. */
shouter_status_t shouter_scatterv(const struct shouter_t *shouter,
                                  const void *input,
                                  const size_t *counts,
                                  void *output,
                                  size_t count,
                                  shouter_dtype_t dtype,
                                  uint32_t root);

/* As shouter_reduce_scatter, with `counts[r]` elements for rank `r`: `input` has those for all, `output` this rank's. */
shouter_status_t shouter_reduce_scatterv(const struct shouter_t *shouter,
                                         const void *input,
                                         void *output,
                                         const size_t *counts,
                                         shouter_dtype_t dtype,
                                         shouter_op_t op);

/* The sum of shouter_reduce_scatterv, with each element of this rank's input multiplied by `factor` first, as
 * shouter_operation_t has it. Every rank may choose between this and shouter_reduce_scatterv. */
shouter_status_t shouter_reduce_scatterv_premul(const struct shouter_t *shouter,
                                                const void *input,
                                                void *output,
                                                const size_t *counts,
                                                shouter_dtype_t dtype,
                                                double factor);

/* As shouter_alltoall, with `input_counts[r]` elements for rank `r`, and `output_counts[r]` from it. In place, both are the same. */
shouter_status_t shouter_alltoallv(const struct shouter_t *shouter,
                                   const void *input,
                                   const size_t *input_counts,
                                   void *output,
                                   const size_t *output_counts,
                                   shouter_dtype_t dtype);

/* Makes a window of `count` elements at `memory` of each rank, which all ranks may access from then on; `*window` is its number. Every rank
 * calls it, as it would a collective, with one dtype and as many elements as it likes. The memory must be aligned to its elements and
 * stay where it is until shouter_window_free or shouter_finalize has returned; meanwhile this process may touch what no access is under
 * way to: after shouter_window_fence, say. Its bytes belong to one open window at a time, which is not checked.
 *
 * This and the following functions: windows are of one group, and number its ranks as it does. An access names the rank `target` and the first element
 * `offset` of its part. Those of one rank to one target take effect in the order in which they were made, reads among them; each element is
 * accessed atomically. Where the target's memory is of shouter_alloc, with elements of up to 8 bytes, ranks of its host access it by themselves,
 * within the call. Other accesses are served by the target whenever its group is driven: all the time with mode=dedicated, else within calls, and by a
 * helper thread every 0.5 to 5 ms. The group goes on after SHOUTER_ERROR_ARGUMENT (no such window or rank, a range that is not within the
 * target's part, another dtype than the window's), SHOUTER_ERROR_MISMATCH (the target has freed the window, or ranks make different ones)
 * and SHOUTER_ERROR_DEADLINE (the target has not served it within the group's own deadline). */
shouter_status_t shouter_window_create(const struct shouter_t *shouter,
                                       void *memory,
                                       size_t count,
                                       shouter_dtype_t dtype,
                                       uint32_t *window);

/* Writes `count` elements at `data`, which may be changed when shouter_window_flush, or shouter_window_fence, has returned. Returns when it
 * has started, and where this rank accesses the target's memory by itself, when it has taken effect; so do the next two. */
shouter_status_t shouter_window_put(const struct shouter_t *shouter,
                                    uint32_t window,
                                    const void *data,
                                    size_t count,
                                    shouter_dtype_t dtype,
                                    uint32_t target,
                                    uint64_t offset);

/* Reads `count` elements to `into`, where they are when shouter_window_flush, or shouter_window_fence, has returned. */
shouter_status_t shouter_window_get(const struct shouter_t *shouter,
                                    uint32_t window,
                                    void *into,
                                    size_t count,
                                    shouter_dtype_t dtype,
                                    uint32_t target,
                                    uint64_t offset);

/* Changes the target's elements with the `count` at `data`: `op` is SHOUTER_SUM or its like, but no SHOUTER_AVG, or
 * SHOUTER_REPLACE. They may be changed when shouter_window_flush, or shouter_window_fence, has returned. */
shouter_status_t shouter_window_accumulate(const struct shouter_t *shouter,
                                           uint32_t window,
                                           const void *data,
                                           size_t count,
                                           shouter_dtype_t dtype,
                                           shouter_op_t op,
                                           uint32_t target,
                                           uint64_t offset);

/* As shouter_window_accumulate, and writes what the elements were before to `before`; `op` may be SHOUTER_KEEP, too. Returns when that is
 * there. */
shouter_status_t shouter_window_fetch_and_op(const struct shouter_t *shouter,
                                             uint32_t window,
                                             const void *data,
                                             void *before,
                                             size_t count,
                                             shouter_dtype_t dtype,
                                             shouter_op_t op,
                                             uint32_t target,
                                             uint64_t offset);

/* Writes the element at `desired` if the target's has the bits of that at `expected`, and writes what it was before to `before`. Returns
 * when that is there. Only integers and truth values have it. */
shouter_status_t shouter_window_compare_and_swap(const struct shouter_t *shouter,
                                                 uint32_t window,
                                                 const void *expected,
                                                 const void *desired,
                                                 void *before,
                                                 shouter_dtype_t dtype,
                                                 uint32_t target,
                                                 uint64_t offset);

/* Waits until all accesses of this rank to the part of rank `target`, or with SHOUTER_ANY_RANK to those of all, have taken effect there. The
 * status is that of one that has failed, the first of its target; the next flush says another's. */
shouter_status_t shouter_window_flush(const struct shouter_t *shouter,
                                      uint32_t window,
                                      int64_t target);

/* Waits until all accesses of all ranks have taken effect. Every rank calls it. */
shouter_status_t shouter_window_fence(const struct shouter_t *shouter, uint32_t window);

/* Ends a window, together with all ranks, when all accesses have taken effect; the memory is the caller's again. */
shouter_status_t shouter_window_free(const struct shouter_t *shouter, uint32_t window);

/* Starts an operation and returns at once; `*work` is its handle, which shouter_work_free frees.
 *
 * Every rank makes its calls in the same order, blocking ones among them; where all ranks are on one host, small operations that one rank
 * starts all must start (with a rank that calls the blocking function instead, all get SHOUTER_ERROR_MISMATCH). Until the operation
 * has ended, as shouter_test, shouter_wait, shouter_wait_any or a callback says, or shouter_finalize has returned, its memory
 * must stay where it is, nobody may touch the output, and nobody may write the input.
 *
 * Where fuse_below is set, a registered tensor below it is held until the others of its bucket were pushed or what is held is flushed. It is
 * flushed by the first shouter_wait or shouter_wait_any for a tensor that is held, a second start of one, shouter_barrier and
 * shouter_finalize. All that is held goes by itself then. So ranks wait for such tensors in the same order among their starts.
 *
 * Collectives with a count for each rank are as shouter_allgatherv and the functions behind it. Those whose counts not every rank knows (GATHERV,
 * SCATTERV, ALLTOALLV) hold up what this rank starts behind them until all ranks have started them; counts that differ are the operation's
 * status.
 *
 * Messages are as shouter_send, shouter_recv and shouter_exchange. They are outside the order of the collectives, and however ranks order theirs they
 * cannot wait for each other for ever. shouter_work_message says what has come.
 *
 * SHOUTER_ERROR_ARGUMENT: see the blocking functions. SHOUTER_ERROR_WOULD_BLOCK: as many operations are under way as can be (1,000 at least), and none
 * has ended within a second. Nothing was started then. */
shouter_status_t shouter_start(const struct shouter_t *shouter,
                               const struct shouter_operation_t *operation,
                               struct shouter_work_t **work);

/* Runs an operation and waits for it: what the blocking function of its kind does, and ranks may use either; with a factor
 * and layouts, where the descriptor has them. Not for SHOUTER_OPERATION_OF_TENSOR.
 *
 * SHOUTER_ERROR_ARGUMENT: see the blocking functions; a factor of what is no sum, or of a type without factors; a layout with
 * blocks of nothing, with blocks that overlap, that does not fit in memory, or that has another number of elements than the operation. */
shouter_status_t shouter_run(const struct shouter_t *shouter,
                             const struct shouter_operation_t *operation);

/* Whether an operation has ended: `*ended` is 1 or 0. The status is the operation's where it has ended, SHOUTER_OK where it has not.
 * It flushes nothing (see shouter_start), nor do callbacks: a tensor that only they ask for gets SHOUTER_ERROR_DEADLINE if its bucket is not
 * full by then, and the group goes on. */
shouter_status_t shouter_test(const struct shouter_work_t *work,
                              int *ended);

/* Waits until an operation has ended, and its memory is the caller's again; the status is the operation's, each time.
 * For a tensor that is held for others of its bucket it flushes what is held (see shouter_start).
 *
 * `timeout_ms` is SHOUTER_DEFAULT_TIMEOUT, or a time in milliseconds. After SHOUTER_ERROR_TIMEOUT the operation is still under way. */
shouter_status_t shouter_wait(const struct shouter_work_t *work,
                              int64_t timeout_ms);

/* Waits until one of `n` operations of one group has ended, well or not; `*index` is the first that has. SHOUTER_ERROR_TIMEOUT if none
 * has within `timeout_ms`. shouter_test says how it has ended. */
shouter_status_t shouter_wait_any(struct shouter_work_t *const *works,
                                  size_t n,
                                  int64_t timeout_ms,
                                  size_t *index);

/* Has a helper thread of the group call `callback` once the operation has ended; soon, where it has. The callback may start operations
 * and wait for them; others wait until it returns. shouter_finalize runs all that are due, and waits for them, so it must not be
 * called in one. `work` may be freed before. */
shouter_status_t shouter_on_done(const struct shouter_work_t *work,
                                 shouter_done_t callback,
                                 void *context);

/* Frees a handle; NULL is allowed and does nothing. No other call may be under way with it, and each later one gets
 * SHOUTER_ERROR_ARGUMENT. The operation goes on, and its memory is the group's until shouter_finalize has
 * returned, unless another call has said that it has ended. */
shouter_status_t shouter_work_free(struct shouter_work_t *work);

/* A file descriptor for an event loop: `*fd` becomes readable when an operation ends that was started after the first call of this. Read
 * its 8 bytes then, and ask the handles. It may be readable without news. It is the group's, until shouter_finalize; do not close it. */
shouter_status_t shouter_completion_fd(const struct shouter_t *shouter,
                                       int *fd);

/* What a started SHOUTER_OPERATION_RECV or SENDRECV has received, from whom and with which tag, once it has ended well; of a SEND, what has been
 * sent to whom. SHOUTER_ERROR_ARGUMENT before that, and for other kinds. */
shouter_status_t shouter_work_message(const struct shouter_work_t *work,
                                      struct shouter_message_t *message);

/* Cancels a started receive that no message was matched with: it ends with SHOUTER_ERROR_ARGUMENT. `*cancelled` is 1 then, and 0 where it
 * was too late, and for other kinds, which go on. */
shouter_status_t shouter_cancel(const struct shouter_work_t *work,
                                int *cancelled);

#ifdef __cplusplus
}  /* extern "C" */
#endif  /* __cplusplus */

#endif  /* SHOUTER_H */
